"""Comparing the outputs of two models on the same random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from engine.ir import Dimension, ElementType, Model, TensorType, boolean
from engine.ops.evaluator import evaluate_model
from engine.runtime.comparison import distances
from engine.runtime.port import Port
from engine.runtime.random_inputs import Ranges, random_inputs


def check_equivalence(
    a: Model,
    b: Model,
    *,
    inputs: dict[str, Any] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    dims: dict[str, int] | None = None,
) -> None:
    """Raise `AssertionError` if two models with the same inputs compute different outputs.

    Inputs pair by name, or by position where the names differ; outputs by position.

    Args:
        inputs: values by name; other inputs are random, integers from 0 to 3, with dynamic dimensions taken from
            `dims` by symbol, or 2.
        rtol: allowed difference relative to the largest magnitude of an output; by default 64 units in the last place
            of its type, at most 0.05. This is enough for reordered reductions of a few thousand terms, whose error
            grows with the square root of their number.
    """
    given = inputs or {}
    unknown = [name for name in given if name not in _names(a)]
    if unknown or len(a.parameters) != len(b.parameters):
        raise AssertionError(f"inputs {unknown or _names(a)} against {_names(b)}")
    values = {**given, **_random_values(a, given, seed, dims or {})}
    feed = [values[name] for name in _names(a)]
    left, right = evaluate_model(a, feed), evaluate_model(b, _ordered_for(b, a, feed))
    if len(left) != len(right):
        raise AssertionError(f"{len(left)} outputs against {len(right)}")
    for result, x, y in zip(a.results, left, right, strict=True):
        problem = _difference(x, y, rtol)
        if problem:
            raise AssertionError(f"output `{result.friendly_name}`: {problem}")


def _ordered_for(b: Model, a: Model, feed: list[Any]) -> list[Any]:
    """The values of `a`'s inputs in the order of `b`'s: by name if the names agree, otherwise by position."""
    by_name = dict(zip(_names(a), feed, strict=True))
    names = _names(b)
    return [by_name[name] for name in names] if set(names) == set(by_name) else feed


def _names(model: Model) -> list[str]:
    return [parameter.friendly_name for parameter in model.parameters]


def _random_values(model: Model, given: Mapping[str, Any], seed: int, dims: Mapping[str, int]) -> dict[str, Any]:
    """Values for the inputs that are not given. Raises `AssertionError` for types without random values."""
    ports, shapes = [], {}
    for parameter in model.parameters:
        if parameter.friendly_name in given:
            continue
        name, value_type = parameter.friendly_name, parameter.type
        if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic or not _is_number(value_type):
            raise AssertionError(f"cannot generate a random value of type {value_type}; pass one in `inputs`")
        ports.append(Port(name, value_type))
        shapes[name] = [dim.get_length() if dim.is_static else _length(dim, dims) for dim in value_type.shape.dims]
    return random_inputs(ports, seed=seed, shapes=shapes, ranges=Ranges(integers=(0, 3)))


def _is_number(value_type: TensorType) -> bool:
    element_type = value_type.element_type
    return element_type.is_real or element_type.is_complex or element_type.is_integral or element_type is boolean


def _length(dim: Dimension, dims: Mapping[str, int]) -> int:
    wanted = max(dim.min, dims.get(dim.symbol or "", 2))
    return wanted if dim.max is None else min(wanted, dim.max)


def _difference(x: Any, y: Any, rtol: float | None) -> str:
    if x is None or y is None:
        return "" if x is y else f"{x!r} against {y!r}"
    if isinstance(x, list):
        if not isinstance(y, list) or len(x) != len(y):
            return f"{x!r} against {y!r}"
        return next(filter(None, (_difference(p, q, rtol) for p, q in zip(x, y, strict=True))), "")
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype}{list(x.shape)} against {y.dtype}{list(y.shape)}"
    element_type = ElementType.from_numpy(x.dtype)
    if not x.size or not (element_type.is_real or element_type.is_complex):
        return "" if np.array_equal(x, y) else f"{int(np.sum(x != y))} of {x.size} values differ"
    if rtol is None:
        rtol = min(0.05, 64 * _resolution(x.dtype))
    found = distances(y, x)
    if found.mismatched:
        return "NaN or infinity at different positions"
    error, scale = found.max_absolute, found.max_magnitude
    return "" if error <= rtol * max(scale, 1e-30) else f"differs by {error:.3g}, with a maximum of {scale:.3g}"


def _resolution(dtype: np.dtype[Any]) -> float:
    """The machine epsilon of a floating-point type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
