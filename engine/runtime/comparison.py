"""Compares results with expected ones: how many elements differ, and by how much.

Every comparison in the engine is based on `distances`, with tolerances of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.errors import InputError
from engine.runtime.values import Array, Value
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Distances:
    """How far each element of an array is from the expected one.

    Attributes:
        distance: absolute differences: exact for integers (uint64), else in double precision; 0 where `is_same`.
        magnitude: the magnitudes of the expected elements.
        is_same: where both are equal, or both are NaN.
        is_finite: where both are finite.
    """

    distance: Array
    magnitude: Array
    is_same: Array
    is_finite: Array

    @property
    def mismatched(self) -> int:
        """How many elements are finite in only one of the arrays, or differ in infinity or NaN."""
        return int(np.count_nonzero(~self.is_finite & ~self.is_same))

    @property
    def max_absolute(self) -> float:
        """The largest distance among finite elements."""
        return float(self.distance[self.is_finite].max(initial=0))

    @property
    def max_relative(self) -> float:
        """The largest quotient of distance and magnitude among finite elements that are expected to be nonzero."""
        is_large = self.is_finite & (self.magnitude > 0)
        return float((self.distance[is_large] / self.magnitude[is_large]).max(initial=0.0))

    @property
    def max_magnitude(self) -> float:
        """The largest magnitude among finite elements."""
        return float(self.magnitude[self.is_finite].max(initial=0.0))


def distances(actual: Array, expected: Array) -> Distances:
    """The distances of two arrays of numbers of one type and shape."""
    if expected.dtype.kind in "iu":
        # Unsigned subtraction wraps to the correct distance, even between the smallest and largest int64.
        a, b = actual.astype(np.uint64), expected.astype(np.uint64)
        distance = np.where(actual > expected, a - b, b - a)
        is_finite = np.ones(distance.shape, bool)
        return Distances(distance, np.abs(expected.astype(np.float64)), distance == 0, is_finite)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    got, want = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        is_same = (got == want) | (np.isnan(got) & np.isnan(want))
        distance = np.where(is_same, 0.0, np.abs(got - want))
        return Distances(distance, np.abs(want), is_same, np.isfinite(got) & np.isfinite(want))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one tensor compares with the expected one.

    Attributes:
        name: the output's name, with the index for an element of a sequence.
        size: the number of elements compared.
        mismatches: how many elements differ by more than the tolerance.
        max_absolute: the largest absolute difference; NaN if any element is NaN in only one of the two.
        max_relative: the largest difference divided by the expected magnitude, among elements expected to be nonzero.
        problem: why the two cannot be compared element by element; empty if they can.
    """

    name: str
    size: int = 0
    mismatches: int = 0
    max_absolute: float = 0.0
    max_relative: float = 0.0
    problem: str = ""

    @property
    def is_close(self) -> bool:
        """Whether every element is within the tolerance."""
        return not self.problem and not self.mismatches


def compare_results(
    actual: Mapping[str, Value], expected: Mapping[str, Value], *, rtol: float = 1e-3, atol: float = 1e-5
) -> list[Comparison]:
    """Compare the outputs that `expected` names, tensor by tensor.

    Floating-point numbers are close if `|actual - expected| <= atol + rtol * |expected|`; NaN is close to NaN, an
    infinity to itself. Integers may differ by `atol`, but not relatively, since they are often indices. Booleans
    and strings must be equal. Nothing is cast: a different element type or shape is reported as a `problem`.

    Raises `InputError` if `expected` names an output that `actual` does not have.
    """
    comparisons: list[Comparison] = []
    for name, value in expected.items():
        if name not in actual:
            raise InputError(f"there is no output {name!r} to compare; outputs: {', '.join(actual) or 'none'}")
        comparisons += _compare(name, actual[name], value, rtol, atol)
    return comparisons


def _compare(name: str, actual: Value, expected: Value, rtol: float, atol: float) -> list[Comparison]:
    if isinstance(actual, np.ndarray) and isinstance(expected, np.ndarray):
        return [_compare_tensors(name, actual, expected, rtol, atol)]
    if isinstance(actual, list) and isinstance(expected, list):
        if len(actual) != len(expected):
            return [Comparison(name, problem=f"it has {len(actual)} elements, expected {len(expected)}")]
        pairs = enumerate(zip(actual, expected, strict=True))
        return [c for i, (a, e) in pairs for c in _compare(f"{name}[{i}]", a, e, rtol, atol)]
    if type(actual) is not type(expected):
        return [Comparison(name, problem=f"it is a {type(actual).__name__}, expected a {type(expected).__name__}")]
    return [Comparison(name, 1, int(actual != expected))]


def _compare_tensors(name: str, actual: Array, expected: Array, rtol: float, atol: float) -> Comparison:
    if actual.shape != expected.shape:
        return Comparison(name, problem=f"its shape is {actual.shape}, expected {expected.shape}")
    if _is_text(actual) and _is_text(expected):
        return Comparison(name, expected.size, int((actual.astype(object) != expected.astype(object)).sum()))
    if actual.dtype != expected.dtype:
        return Comparison(name, problem=f"its element type is {actual.dtype}, expected {expected.dtype}")
    if not expected.size:
        return Comparison(name)
    if expected.dtype.kind == "b":
        return Comparison(name, expected.size, int((actual != expected).sum()))
    found = distances(actual, expected)
    if expected.dtype.kind in "iu":
        return _summary(name, found, found.distance > atol)
    is_close = found.is_same | ((found.distance <= atol + rtol * found.magnitude) & found.is_finite)
    return _summary(name, found, ~is_close)


def _summary(name: str, found: Distances, is_wrong: Array) -> Comparison:
    distance, magnitude = found.distance, found.magnitude
    with np.errstate(invalid="ignore"):
        relative = np.divide(distance, magnitude, out=np.zeros(distance.shape), where=magnitude != 0)
    return Comparison(
        name, distance.size, int(np.count_nonzero(is_wrong)), float(np.max(distance)), float(np.max(relative))
    )


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "OUT"
