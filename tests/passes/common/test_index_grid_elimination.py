"""Masks that exporters gather. If these fail, attention sees other keys, or each length needs a plan of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, boolean, f32
from engine.passes.common.index_grid_elimination import IndexGridElimination
from engine.testing.passes import check_pass


def operators(model: Model) -> set[str]:
    return {node.op_type for node in model.ordered_nodes()}


def grid(*shape: int, order: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    """The coordinates (batch, key) of a mask [batch, keys] for each element of [batch, 1, queries, keys]."""
    batch, queries, keys = shape
    rows, columns = np.arange(batch)[:, None, None, None], np.arange(keys)
    whole = np.broadcast_arrays(rows, columns, np.zeros((batch, 1, queries, keys)))[:2]
    return np.stack([whole[i] for i in order or (0, 1)], axis=-1).astype(np.int64)


@pytest.mark.parametrize("shape", [(2, 1, 5), (2, 3, 5), (1, 1, 4), (1, 3, 4), (3, 2, 1), (4, 1, 4)])
def test_gathering_each_position_is_a_reshape(shape: tuple[int, int, int]) -> None:
    batch, _, keys = shape
    mask = Parameter(boolean, [batch, keys], "mask")
    model = Model([ops.Not(ops.GatherND(mask, Constant(grid(*shape))))], [mask])
    check_pass(IndexGridElimination, model, inputs={"mask": np.arange(batch * keys).reshape(batch, keys) % 3 == 0})
    assert operators(model) <= {"Parameter", "Constant", "Reshape", "Expand", "Not", "Result"}


def test_gathering_rows_in_their_order_is_a_reshape() -> None:
    x = Parameter(f32, [6, 2], "x")
    model = Model([ops.Gather(x, Constant(np.arange(6).reshape(2, 1, 3)))], [x])
    check_pass(IndexGridElimination, model, inputs={"x": np.arange(12, dtype=np.float32).reshape(6, 2)})
    assert "Gather" not in operators(model)


def test_rows_of_no_elements() -> None:
    x = Parameter(f32, [4, 0], "x")
    model = Model([ops.Gather(x, Constant(np.arange(4).reshape(2, 2)))], [x])
    check_pass(IndexGridElimination, model, inputs={"x": np.zeros((4, 0), np.float32)})


def _others() -> list[Node]:
    mask, square = Parameter(boolean, [2, 5], "mask"), Parameter(boolean, [4, 4], "square")
    shifted = grid(2, 1, 5)
    shifted[..., 1] = (shifted[..., 1] + 1) % 5
    swapped = grid(4, 4, 4)[:, 0][..., ::-1].copy()
    return [
        ops.GatherND(mask, Constant(shifted)),
        ops.GatherND(mask, Constant(grid(2, 1, 4))),
        ops.GatherND(square, Constant(swapped)),
        ops.Gather(mask, Constant(np.array([1, 0]))),
        ops.Gather(mask, Constant(np.array([0]))),
        ops.Gather(square, Constant(np.arange(4)), axis=1),
    ]


@pytest.mark.parametrize("index", range(6))
def test_other_indices_stay(index: int) -> None:
    node = _others()[index]
    source = node.input_value(0).node
    assert isinstance(source, Parameter)
    model = Model([ops.Not(node)], [source])
    assert not IndexGridElimination().run_on_model(model)
