"""Look-ups and writes at computed positions. If these fail, decoders write their caches to wrong places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Parameter, f32, i64
from engine.passes.common.position_decompositions import RotaryPositionsDecomposition, TensorScatterDecomposition
from engine.testing.passes import check_pass


def operators(model: Model) -> set[str]:
    return {node.op_type for node in model.ordered_nodes()}


@pytest.mark.parametrize("has_start", [True, False])
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("past", "update", "axis"),
    [
        ((2, 3, 7, 4), (2, 3, 2, 4), -2),
        ((2, 3, 7, 4), (2, 3, 2, 4), 2),
        ((3, 6, 2, 4), (3, 3, 2, 4), 1),
        ((2, 5), (2, 2), 1),
        ((2, 2, 3, 5), (2, 2, 3, 0), 3),
        ((0, 4, 3), (0, 2, 3), 1),
    ],
)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_the_rows_of_an_update_are_scattered(
    past: Sequence[int], update: Sequence[int], axis: int, mode: str, has_start: bool, is_dynamic: bool
) -> None:
    shapes = [[None] * len(shape) if is_dynamic else shape for shape in (past, update)]
    parameters = [Parameter(f32, shape, name) for shape, name in zip(shapes, ("past", "update"), strict=True)]
    inputs = {"past": np.arange(np.prod(past)), "update": -1.0 - np.arange(np.prod(update))}
    feed = {
        name: inputs[name].astype(np.float32).reshape(shape) for name, shape in zip(inputs, (past, update), strict=True)
    }
    if has_start:
        parameters.append(Parameter(i64, shapes[0][:1], "start"))
        free = past[axis] - (0 if mode == "circular" else update[axis])
        feed["start"] = (np.arange(past[0]) * 2 + 1) % max(free, 1)
    model = Model([ops.TensorScatter(*parameters, axis=axis, mode=mode)], parameters)
    check_pass(TensorScatterDecomposition, model, inputs=feed)
    assert "TensorScatter" not in operators(model)


@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1, "rotary_embedding_dim": 8}])
@pytest.mark.parametrize("is_flat", [False, True])
def test_rotary_tables_are_looked_up(attributes: dict[str, int], is_flat: bool) -> None:
    columns = attributes.get("rotary_embedding_dim", 16) // 2
    random = np.random.default_rng(0)
    tables = [Constant(random.normal(size=(20, columns)).astype(np.float32)) for _ in range(2)]
    x = Parameter(f32, ["B", "S", 48] if is_flat else ["B", 3, "S", 16], "x")
    positions = Parameter(i64, ["B", "S"], "positions")
    more = {"num_heads": 3} if is_flat else {}
    model = Model([ops.RotaryEmbedding(x, *tables, positions, **attributes, **more)], [x, positions])
    feed = {
        "x": random.normal(size=(2, 5, 48) if is_flat else (2, 3, 5, 16)).astype(np.float32),
        "positions": np.array([[3, 0, 19, 7, 7], [0, 1, 2, 3, 4]]),
    }
    check_pass(RotaryPositionsDecomposition, model, inputs=feed)
    (node,) = [node for node in model.ordered_nodes() if node.op_type == "RotaryEmbedding"]
    assert not node.has_input(3)


def test_a_rotary_embedding_by_rows_stays() -> None:
    x, (cosines, sines) = Parameter(f32, [2, 3, 5, 16], "x"), (Parameter(f32, [2, 5, 8], name) for name in "cs")
    model = Model([ops.RotaryEmbedding(x, cosines, sines)], [x, cosines, sines])
    check_pass(RotaryPositionsDecomposition, model, changes=False)
