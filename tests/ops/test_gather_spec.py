"""Specs of Gather, Scatter and their kin: if these fail, a device reads another element than the model asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Constant, Node, Parameter, PartialShape, f32, i64
from engine.ops.gather import GatherNDSpec, GatherSpec, OneHotSpec, ScatterElementsSpec, TensorScatterSpec, TriluSpec

X = Parameter(f32, [2, 3, 4], "x")
ANY = Parameter(f32, PartialShape.dynamic(), "any")
FOUND = Parameter(i64, [2, 3, 4], "found")
LENGTHS = Parameter(i64, [3], "lengths")


@pytest.mark.parametrize(
    ("axis", "resolved", "lengths"), [(0, 0, (1, 2, 12)), (-1, 2, (6, 4, 1)), (1, 1, (2, 3, 4)), (-3, 0, (1, 2, 12))]
)
def test_axes_and_the_lengths_around_them(axis: int, resolved: int, lengths: tuple[int, ...]) -> None:
    for node in (ops.Gather(X, FOUND, axis=axis), ops.GatherElements(X, FOUND, axis=axis)):
        spec = GatherSpec.of(node)
        assert (spec.axis, spec.at((2, 3, 4))) == (resolved, lengths)


def test_defaults() -> None:
    assert GatherSpec.of(ops.Gather(X, FOUND)).axis == 0
    assert GatherNDSpec.of(ops.GatherND(X, LENGTHS)).batch_dims == 0
    scatter = ScatterElementsSpec.of(ops.ScatterElements(X, FOUND, X))
    assert (scatter.axis, scatter.reduction) == (0, "none")
    cache = TensorScatterSpec.of(ops.TensorScatter(X, Parameter(f32, [2, 1, 4], "update")))
    assert (cache.axis, cache.mode) == (1, "linear")
    assert TriluSpec.of(ops.Trilu(X)).upper


def test_the_axis_of_one_hot_is_one_of_its_output() -> None:
    def axis_of(node: Node) -> int:
        return OneHotSpec.of(node).axis

    arguments = (FOUND, Constant(np.array(5)), Constant(np.array([0.0, 1.0], np.float32)))
    assert axis_of(ops.OneHot(*arguments)) == 3
    assert axis_of(ops.OneHot(*arguments, axis=-4)) == 0


def test_axes_of_unknown_ranks_stay() -> None:
    assert GatherSpec.of(ops.Gather(ANY, FOUND, axis=-2)).axis == -2
    assert GatherSpec.of(ops.Gather(ANY, FOUND, axis=-2)).at((2, 3, 4)) == (2, 3, 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.Gather(X, FOUND, axis=3), r"attribute axis is 3; allowed: -3\.\.2, as the rank is 3"),
        (lambda: ops.GatherElements(X, FOUND, axis=-4), "attribute axis is -4"),
        (lambda: ops.GatherND(X, FOUND, batch_dims=3), r"attribute batch_dims is 3; allowed: 0\.\.2"),
        (lambda: ops.GatherND(X, FOUND, batch_dims=-1), "attribute batch_dims is -1"),
        (lambda: ops.ScatterElements(X, FOUND, X, axis=3), "attribute axis is 3"),
        (lambda: ops.ScatterND(X, FOUND, X, reduction="sum"), "reduction is 'sum'; allowed: none, add, mul, min, max"),
        (lambda: ops.OneHot(LENGTHS, Constant(np.array(5)), Constant(np.zeros(2)), axis=2), "attribute axis is 2"),
        (lambda: ops.TensorScatter(X, X, axis=-3), "attribute axis is -3; allowed: any axis but 0"),
        (lambda: ops.TensorScatter(X, X, mode="ring"), "mode is 'ring'; allowed: linear, circular"),
        (lambda: ops.ReverseSequence(X, LENGTHS, batch_axis=2), "attribute batch_axis is 2; allowed: 0 or 1"),
        (lambda: ops.ReverseSequence(X, LENGTHS, batch_axis=0), "attribute time_axis is 0; allowed: 1"),
        (lambda: ops.Trilu(Parameter(f32, [3], "v")), "input 0 has rank 1; allowed: 2 or more"),
    ],
)
def test_bad_attributes_are_refused(build: Callable[[], Node], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        build()
