"""Specs of reductions and selections: if these fail, a device reduces other axes than the model asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.errors import InputError, OperatorSpecError
from engine.ir import Constant, Node, Parameter, PartialShape, f32
from engine.ops.reduce import ArgReduceSpec, CumulativeSpec, ReduceSpec
from engine.ops.select import CompressSpec, TopKSpec, UniqueSpec

X = Parameter(f32, [2, 3, 4], "x")
SCALAR = Parameter(f32, [], "s")
ANY = Parameter(f32, PartialShape.dynamic(), "any")
ONE = Constant(np.array([1]))
MASK = Constant(np.array([True]))


@pytest.mark.parametrize(
    ("axes", "noop", "expected"),
    [(None, 0, (0, 1, 2)), (None, 1, ()), ([], 0, (0, 1, 2)), ([], 1, ()), ([-1, 0], 0, (0, 2)), ([2], 1, (2,))],
)
def test_reduced_axes(axes: list[int] | None, noop: int, expected: tuple[int, ...]) -> None:
    spec = ReduceSpec.of(ops.ReduceSum(X, noop_with_empty_axes=noop))
    assert spec.keepdims
    assert spec.at(3, axes) == expected


def test_axes_out_of_range_are_refused_once_they_are_known() -> None:
    with pytest.raises(OperatorSpecError, match=r"ReduceMax `r`: input axes is 3; allowed: -3\.\.2"):
        ReduceSpec.of(ops.ReduceMax(X, friendly_name="r")).at(3, np.array([0, 3]))
    with pytest.raises(OperatorSpecError, match=r"CumSum `c`: input axis is -2; allowed: -1\.\.0"):
        CumulativeSpec.of(ops.CumSum(ANY, ONE, friendly_name="c")).at((4,), [-2])


def test_defaults() -> None:
    arg = ArgReduceSpec.of(ops.ArgMax(X))
    assert (arg.axis, arg.keepdims, arg.select_last_index) == (0, True, False)
    running = CumulativeSpec.of(ops.CumSum(X, ONE))
    assert (running.exclusive, running.reverse, running.at((2, 3, 4), 1)) == (False, False, (2, 3, 4))
    top = TopKSpec.of(ops.TopK(X, ONE))
    assert (top.axis, top.largest, top.sorted) == (2, True, True)
    unique = UniqueSpec.of(ops.Unique(X))
    assert (unique.axis, unique.sorted) == (None, True)
    assert CompressSpec.of(ops.Compress(X, MASK, axis=-1)).axis == 2


def test_of_nothing_there_is_no_largest() -> None:
    spec = ArgReduceSpec.of(ops.ArgMax(ANY, axis=1))
    assert spec.at((0, 0)) == (0, 0, 1)
    with pytest.raises(InputError, match=r"ArgMax .*: an input \[2, 0\] is empty along axis 1"):
        spec.at((2, 0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.ArgMin(X, axis=-4), r"attribute axis is -4; allowed: -3\.\.2"),
        (lambda: ops.ArgMax(SCALAR), "attribute axis is 0; allowed: none, as the rank is 0"),
        (lambda: ops.CumSum(SCALAR, ONE), "input 0 has rank 0; allowed: 1 or more"),
        (lambda: ops.TopK(X, ONE, axis=3), "attribute axis is 3"),
        (lambda: ops.Unique(X, axis=3), "attribute axis is 3"),
        (lambda: ops.Compress(X, MASK, axis=3), "attribute axis is 3"),
        (lambda: ops.NonMaxSuppression(X, X, center_point_box=2), "center_point_box is 2; allowed: 0 or 1"),
    ],
)
def test_bad_attributes_are_refused(build: Callable[[], Node], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        build()
