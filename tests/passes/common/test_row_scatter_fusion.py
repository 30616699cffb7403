"""Poolings of graph networks. If these fail, they take ten times as long, or rows are added to others."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, f32, i64
from engine.ops import evaluate_model
from engine.passes.common.row_scatter_fusion import RowScatterFusion
from engine.testing.passes import check_pass


def pooling(
    rows: int | str, *width: int, reduction: str = "add", nodes: int = 4, columns: int = 1
) -> tuple[Model, list[Parameter]]:
    """Updates [rows, width] into [nodes, width], at indices [rows, columns, ..] that are expanded."""
    updates = Parameter(f32, [rows, *width], "updates")
    index = Parameter(i64, [rows, columns, *(1 for _ in width[1:])], "index")
    expanded = ops.Expand(index, ops.Shape(updates))
    zeros = Constant(np.zeros((nodes, *width), np.float32))
    result = ops.ScatterElements(zeros, expanded, updates, axis=0, reduction=reduction)
    return Model([result], [updates, index], name="pooling"), [updates, index]


def operators(model: Model) -> set[str]:
    return {node.op_type for node in model.ordered_nodes()}


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("width", [(1,), (3,), (2, 3)])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_indices_of_rows(reduction: str, width: tuple[int, ...], rows: int) -> None:
    """Also negative ones."""
    rng = np.random.default_rng(1)
    updates = rng.standard_normal((rows, *width)).astype(np.float32)
    shape = (rows, *(1 for _ in width))
    at = rng.permutation(4)[:rows] if reduction == "none" and rows <= 4 else rng.integers(-4, 4, rows)
    if reduction == "none" and rows > 4:
        at = np.zeros(rows, np.int64)  # the last one stays
    inputs = {"updates": updates, "index": at.astype(np.int64).reshape(shape)}
    model, _ = pooling(rows, *width, reduction=reduction)
    (before,) = evaluate_model(model.clone(), inputs)
    check_pass(RowScatterFusion, model, inputs=inputs)
    assert "ScatterND" in operators(model)
    assert "ScatterElements" not in operators(model)
    np.testing.assert_array_equal(evaluate_model(model, inputs)[0], before)


def test_a_length_with_a_symbol() -> None:
    model, _ = pooling("edges", 3)
    assert RowScatterFusion().run_on_model(model)


def test_constant_indices() -> None:
    updates = Parameter(f32, [3, 2], "updates")
    zeros = Constant(np.zeros((4, 2), np.float32))
    for at, is_row in (([[1, 1], [3, 3], [1, 1]], True), ([[1, 1], [3, 2], [1, 1]], False)):
        node = ops.ScatterElements(zeros, Constant(np.array(at)), updates, axis=0, reduction="add")
        assert RowScatterFusion().run_on_model(Model([node], [updates])) is is_row


def _others() -> list[Node]:
    updates, index = Parameter(f32, [3, 2], "updates"), Parameter(i64, [3, 1], "index")
    wide, square = Constant(np.zeros((4, 5), np.float32)), Constant(np.zeros((4, 2), np.float32))
    one, row = Parameter(i64, [1, 1], "index"), Parameter(i64, [1, 2], "index")
    shape = Constant(np.array([3, 2]))

    def scatter(data: Constant, indices: Node | Parameter, axis: int = 0) -> Node:
        return ops.ScatterElements(data, ops.Expand(indices, shape), updates, axis=axis, reduction="add")

    return [
        scatter(wide, index),  # some columns of the rows
        scatter(square, index, axis=1),
        scatter(square, one),  # one index for all rows
        scatter(square, row),  # an index for each column
    ]


@pytest.mark.parametrize("index", range(4))
def test_other_indices_stay(index: int) -> None:
    node = _others()[index]
    expand = node.input_value(1).node
    parameters = [node.input_value(2).node, expand.input_value(0).node]
    assert all(isinstance(each, Parameter) for each in parameters)
    assert not RowScatterFusion().run_on_model(Model([node], parameters))  # type: ignore[arg-type]


def test_unknown_lengths_on_the_device() -> None:
    model, _ = pooling(-1, 3)
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    rng = np.random.default_rng(2)
    for rows in (1, 5, 40, 0):
        updates, at = rng.standard_normal((rows, 3)).astype(np.float32), rng.integers(0, 4, (rows, 1))
        expected = np.zeros((4, 3), np.float32)
        np.add.at(expected, at[:, 0], updates)
        (found,) = network({"updates": updates, "index": at}).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)  # sums of 40 terms at most, in the same order
