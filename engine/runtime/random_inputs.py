"""Seeded random values for a network's inputs, for running, measuring or comparing it without data."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.ir import ElementType, OptionalType, PartialShape, TensorType, boolean, string
from engine.runtime.port import Port
from engine.runtime.values import Array, Value
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of random values.

    Attributes:
        reals: the bounds of a uniform distribution; by default, those with mean 0 and variance 1.
        integers: the smallest and the largest integer; by default 0 and 1, which are almost always valid indices.
            Booleans, and integers of one or two bits, are 0 or 1 if these are within the range.
    """

    reals: tuple[float, float] | None = None
    integers: tuple[int, int] = (0, 1)


_DEFAULT: Final = Ranges()


def random_inputs(
    ports: Sequence[Port],
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Ranges = _DEFAULT,
) -> dict[str, Value]:
    """Return a value for every port, the same for the same seed, name, type, shape and ranges.

    Strings are short words. Optionals are absent.

    `shapes` gives the shapes of dynamic inputs; the length of a symbol in one of them is used for the other
    inputs. Raises `InputError` if a shape is missing, names no input or does not fit, and for sequences
    and maps.
    """
    given = dict(shapes or {})
    names = [port.name for port in ports]
    for name in given:
        if name not in names:
            raise InputError(
                f"a shape is given for {name!r}, which is not an input; inputs: {', '.join(names) or 'none'}"
            )
    symbols: dict[str, int] = {}
    for port in ports:
        if port.name in given:
            _check_shape(port, tuple(given[port.name]), symbols)
    return {port.name: _random_value(port, given.get(port.name), symbols, seed, ranges) for port in ports}


def _check_shape(port: Port, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    if not isinstance(port.type, TensorType) or not port.shape.accepts(shape):
        raise InputError(f"input `{port.name}` is {port.type} and cannot have the shape {shape}")
    if not port.shape.rank.is_static:
        return
    for dim, length in zip(port.shape, shape, strict=True):
        if dim.symbol is not None and symbols.setdefault(dim.symbol, length) != length:
            raise InputError(
                f"input `{port.name}`: dimension {dim.symbol} of {port.shape} is {length}, and {symbols[dim.symbol]} "
                "in another input; expected equal lengths"
            )


def _random_value(
    port: Port, given: Sequence[int] | None, symbols: Mapping[str, int], seed: int, ranges: Ranges
) -> Value:
    if isinstance(port.type, OptionalType):
        return None
    if not isinstance(port.type, TensorType):
        raise InputError(f"input `{port.name}` is {port.type}, for which no random value can be generated; pass one")
    shape = tuple(given) if given is not None else _known_shape(port, symbols)
    # Raw bits, not numpy's distributions, which may change between releases and invalidate saved references.
    generator = np.random.PCG64([seed, zlib.crc32(port.name.encode())])
    try:
        return _random_tensor(generator, port.element_type, shape, ranges)
    except (MemoryError, ValueError, OverflowError) as e:  # the two others: more elements than any array can have
        raise InputError(f"input `{port.name}`: cannot allocate a random value of shape {shape}: {e}") from e


def _known_shape(port: Port, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with known symbols replaced by their lengths."""
    if not port.shape.rank.is_static:
        raise InputError(f"input `{port.name}` is {port.type}: its shape is not known; pass it, such as {port.name}=1")
    dims = [symbols.get(dim.symbol, dim) if dim.symbol is not None else dim for dim in port.shape]
    shape = PartialShape(dims)
    if shape.is_dynamic:
        example = ",".join(str(max(dim.min, 1)) for dim in shape)
        raise InputError(f"input `{port.name}` is {port.type}: pass its shape, such as {port.name}={example}")
    return shape.get_shape()


def _random_tensor(
    generator: np.random.PCG64, element_type: ElementType, shape: tuple[int, ...], ranges: Ranges
) -> Array:
    if element_type is string:
        words = np.array(["alpha", "beta", "gamma", "delta"], dtype=object)
        return np.asarray(words[_raw(generator, shape) % np.uint64(len(words))], dtype=object)
    if element_type is boolean or element_type.is_integral:
        least, most = ranges.integers
        if element_type is boolean or element_type.bits <= 2:
            least, most = min(least, 1), min(most, 1)
        return ((_raw(generator, shape) % np.uint64(most - least + 1)).astype(np.int64) + least).astype(
            element_type.numpy
        )
    values: Any = _uniform(generator, shape, ranges.reals)
    if element_type.is_complex:
        values = values + 1j * _uniform(generator, shape, ranges.reals)
    if element_type.bits <= 8:
        # Within the range of the narrowest type, and positive, because one of them is unsigned.
        values = np.clip(np.abs(values), 0.5, 2)
    return np.asarray(values).astype(element_type.numpy)


def _uniform(generator: np.random.PCG64, shape: tuple[int, ...], bounds: tuple[float, float] | None) -> Array:
    high = (_raw(generator, shape) >> np.uint64(32)).astype(np.uint32)
    if bounds is not None:
        return np.asarray(bounds[0] + high * ((bounds[1] - bounds[0]) / 2**32), dtype=np.float32)
    return np.asarray(high.view(np.int32) * np.float32(math.sqrt(3.0) / 2**31), dtype=np.float32)


def _raw(generator: np.random.PCG64, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    return np.asarray(generator.random_raw(math.prod(shape)), dtype=np.uint64).reshape(shape)
