"""Comparing the outputs of two models on the same random inputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from engine.ir import Dimension, ElementType, Model
from engine.ops.evaluator import evaluate_model
from engine.runtime.comparison import distances


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
        inputs: values by name; other inputs are random (see `random_input`), with dynamic dimensions taken from `dims`
            by symbol, or 2.
        rtol: allowed difference relative to the largest magnitude of an output; by default 64 units in the last place
            of its type, at most 0.05. This is enough for reordered reductions of a few thousand terms, whose error
            grows with the square root of their number.
    """
    given = inputs or {}
    unknown = [name for name in given if name not in _names(a)]
    if unknown or len(a.parameters) != len(b.parameters):
        raise AssertionError(f"inputs {unknown or _names(a)} against {_names(b)}")
    rng = np.random.default_rng(seed)
    feed = [
        given[p.friendly_name] if p.friendly_name in given else random_input(p.type, rng, dims or {})
        for p in a.parameters
    ]
    left, right = evaluate_model(a, feed), evaluate_model(b, _ordered_for(b, a, feed))
    if len(left) != len(right):
        raise AssertionError(f"{len(left)} outputs against {len(right)}")
    for result, x, y in zip(a.results, left, right, strict=True):
        problem = _difference(x, y, rtol)
        if problem:
            raise AssertionError(f"output `{result.friendly_name}`: {problem}")


def _ordered_for(b: Model, a: Model, feed: list[Any]) -> list[Any]:
    """The values of `a`'s inputs in the order of `b`'s: by name if the names agree, else by position."""
    by_name = dict(zip(_names(a), feed, strict=True))
    names = _names(b)
    return [by_name[name] for name in names] if set(names) == set(by_name) else feed


def _names(model: Model) -> list[str]:
    return [parameter.friendly_name for parameter in model.parameters]


def random_input(value_type: Any, rng: np.random.Generator, dims: dict[str, int]) -> Any:
    """A seeded array for a tensor type: standard normal reals, integers in 0..3, random bools.

    Raises `AssertionError` for non-numeric types: pass these inputs explicitly.
    """
    element_type, shape = getattr(value_type, "element_type", None), getattr(value_type, "shape", None)
    if element_type is None or shape is None or shape.rank.is_dynamic:
        raise AssertionError(f"cannot generate a random value of type {value_type}; pass one in `inputs`")
    lengths = [d.get_length() if d.is_static else _length(d, dims) for d in shape.dims]
    if element_type.is_complex:
        return (rng.standard_normal(lengths) + 1j * rng.standard_normal(lengths)).astype(element_type.numpy)
    if element_type.is_real:
        return rng.standard_normal(lengths).astype(element_type.numpy)
    if element_type.name == "bool":
        return rng.integers(0, 2, lengths).astype(bool)
    if element_type.is_integral:
        return rng.integers(0, 4 if element_type.bits > 2 else 2, lengths).astype(element_type.numpy)
    raise AssertionError(f"cannot generate a random value of type {value_type}; pass one in `inputs`")


def _length(dim: Dimension, dims: dict[str, int]) -> int:
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
