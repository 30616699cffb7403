"""How far a node's value is from the reference's, in units of rounding, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Node, Output, TensorType
from engine.ops.traits import traits_of
from engine.passes.work import work_of
from engine.runtime.comparison import distances
from engine.startup import dataclass

_SUSPECT: Final = 16.0
"""A multiple of the tolerance: values with larger differences are searched first."""
_BASE: Final = 8.0
"""Units of rounding that any node may lose: functions such as Exp or Erf are approximated to a few."""
_STEPS: Final = ("Quantize", "QLinear", "Integer")
"""Operators of integers that round: they may give either neighbour of a value between two integers."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far an array is from the reference.

    Attributes:
        max_absolute, max_relative: the largest difference, and the largest divided by the reference's magnitude, among
            finite numbers.
        units: the largest difference divided by epsilon and scale: for floating-point numbers the epsilon of the
            element type, and the largest magnitude of the reference (or of the inputs of a sum, if larger); for
            integers 1. Infinite if the shapes or types differ, or numbers are finite in only one of them.
        mismatched: elements that are finite in only one of them, or differ in infinity or NaN.
        problem: why they cannot be compared; empty if they can.
    """

    max_absolute: float = 0.0
    max_relative: float = 0.0
    units: float = 0.0
    mismatched: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """One value of the model, on both sides.

    Attributes:
        name: the value's name in the model.
        node, op_type: the node that computes it.
        total: the difference after all nodes up to this one.
        own: the difference of this node alone, given the reference's values as inputs; None if it was not run alone.
        tolerance: the units that the node may lose by itself: 8 (1 + sqrt(n)) for sums of n terms.
        non_finite: elements that are NaN or infinite on each side.
        is_judged: False for random numbers.
    """

    name: str
    node: str
    op_type: str
    element_type: str
    shape: tuple[int, ...]
    total: Gap
    own: Gap | None
    tolerance: float
    non_finite: tuple[int, int]
    is_judged: bool = True

    @property
    def is_beyond(self) -> bool:
        """Whether the total difference is larger than the node alone may make it."""
        return self.is_judged and self.total.units > self.tolerance

    @property
    def is_suspect(self) -> bool:
        """Whether the difference is larger than accumulated rounding of the nodes before it can explain."""
        return self.is_judged and self.total.units > _SUSPECT * self.tolerance

    @property
    def parts(self) -> bool:
        """Whether the node itself is wrong: its inputs do not explain the difference."""
        return self.is_judged and self.own is not None and self.own.units > self.tolerance


def gap(actual: Any, expected: Any, scale: float = 0.0) -> Gap:
    """How far `actual` is from `expected`; `scale` is the minimum scale."""
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        return _worst([gap(a, b, scale) for a, b in zip(actual, expected, strict=True)])
    if not isinstance(actual, np.ndarray) or not isinstance(expected, np.ndarray):
        return (
            Gap()
            if actual is None and expected is None
            else Gap(units=math.inf, problem="it is not a tensor on both sides")
        )
    if actual.shape != expected.shape:
        return Gap(units=math.inf, problem=f"its shape is {actual.shape}, expected {expected.shape}")
    if actual.dtype != expected.dtype:
        return Gap(units=math.inf, problem=f"its type is {actual.dtype}, expected {expected.dtype}")
    if not actual.size:
        return Gap()
    if actual.dtype.kind in "OTUS":
        wrong = int(np.count_nonzero(actual != expected))
        return Gap(units=math.inf if wrong else 0.0, mismatched=wrong)
    found, epsilon = distances(actual, expected), epsilon_of(actual.dtype)
    largest = found.max_absolute
    unit = 1.0 if epsilon is None else epsilon * max(found.max_magnitude, scale)
    units = math.inf if found.mismatched else 0.0 if largest == 0 else largest / unit if unit else math.inf
    return Gap(largest, found.max_relative, units, found.mismatched)


def _worst(gaps: Sequence[Gap]) -> Gap:
    """The statistics of a sequence's elements as one."""
    if not gaps:
        return Gap()
    return Gap(
        max(each.max_absolute for each in gaps),
        max(each.max_relative for each in gaps),
        max(each.units for each in gaps),
        sum(each.mismatched for each in gaps),
        next((each.problem for each in gaps if each.problem), ""),
    )


def epsilon_of(dtype: np.dtype[Any]) -> float | None:
    """The distance from 1 to the next number of a floating-point type; None for integers and booleans."""
    if dtype.kind in "fc":
        return float(np.finfo(dtype).eps)
    if dtype.kind != "V":
        return None
    import ml_dtypes

    try:
        return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    except ValueError:  # integers of 2 and 4 bits
        return None


def tolerance_of(node: Node, output: Output, inputs: Sequence[Any]) -> float:
    """The units of rounding that a node may lose by itself.

    Sums of n terms in any order lose sqrt(n) units of the sum's magnitude, as independent roundings add up; the worst
    case, n units, does not happen to real data. Integers that round may take a neighbour; other integers are exact.
    """
    if not (isinstance(output.type, TensorType) and epsilon_of(output.type.element_type.numpy) is not None):
        return 1.0 if any(part in node.op_type for part in _STEPS) else 0.0
    return _BASE * (1 + math.sqrt(_terms(node, inputs)))


def scale_of(node: Node, inputs: Sequence[Any]) -> float:
    """The magnitude of the inputs of a sum, which determines its errors even where terms cancel; otherwise 0."""
    if _terms(node, inputs) <= 1:
        return 0.0
    data = [each for each in inputs[:1] if isinstance(each, np.ndarray) and epsilon_of(each.dtype) is not None]
    if work_of(node).operations > 2 * _elements(node) and not traits_of(node).accumulates:
        return 0.0  # products: of the output's own magnitude, since weights scale the inputs
    found = [np.abs(each[np.isfinite(each)].astype(np.float64)).max(initial=0.0) for each in data]
    return float(max(found, default=0.0))


def is_random(node: Node) -> bool:
    """Whether a node draws numbers, which are not the same on two devices."""
    return traits_of(node).random and node.op_type != "Dropout"


def _terms(node: Node, inputs: Sequence[Any]) -> float:
    """How many numbers are summed for one element of the result."""
    elements = _elements(node)
    products = work_of(node).operations / (2 * elements) if elements else 1.0
    traits = traits_of(node)
    is_sum = traits.sums or traits.reduces
    data = inputs[0] if inputs and isinstance(inputs[0], np.ndarray) else None
    shrunk = data.size / elements if data is not None and elements and is_sum else 1.0
    axis = max(data.shape, default=1) if data is not None and traits_of(node).accumulates else 1
    return max(1.0, products, shrunk, float(axis))


def _elements(node: Node) -> int:
    value = node.output(0)
    if not isinstance(value.type, TensorType) or value.shape.is_dynamic:
        return 0
    return math.prod(value.shape.get_shape())
