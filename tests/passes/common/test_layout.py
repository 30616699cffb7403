"""Transposes cancel and vanish. If it fails, tensors are copied between layouts, or elements change places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.ops import Traits
from engine.ops.extension import Operator, define
from engine.passes import Manager, check_equivalence
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.flattened_transpose import FlattenedTransposeFusion
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.common.transpose_merge import TransposeMerge, TransposeToReshape
from engine.passes.common.transpose_sinking import TransposeSinking

Apply = Callable[..., Counter[str]]
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
SHAPE = [2, 3, 4, 5]


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def transpose(x: Node, perm: Sequence[int]) -> Node:
    return ops.Transpose(x, perm=list(perm))


def between(make: Callable[[Node], Node]) -> Model:
    """x -> Relu -> to channels last -> what is made -> to channels first -> Neg."""
    x = Parameter(f32, SHAPE, "x")
    return Model([ops.Neg(transpose(make(transpose(ops.Relu(x), LAST)), FIRST))], [x])


def test_transposes_in_a_row_are_one_or_none(apply: Apply) -> None:
    x = Parameter(f32, SHAPE, "x")
    twice = Model([ops.Neg(transpose(transpose(ops.Relu(x), LAST), LAST))], [x])
    assert apply(twice, TransposeMerge)["Transpose"] == 1
    none = Model([ops.Neg(transpose(transpose(ops.Relu(x), LAST), FIRST))], [x])
    assert apply(none, TransposeMerge)["Transpose"] == 0
    direct = Model([transpose(transpose(x, LAST), FIRST)], [x])
    assert apply(direct, TransposeMerge) == {"Identity": 1}


def test_transposes_that_move_lengths_of_one_are_reshapes(apply: Apply) -> None:
    x = Parameter(f32, ["N", 1, 5, 1], "x")
    assert apply(Model([transpose(x, [0, 3, 1, 2])], [x]), TransposeToReshape) == {"Reshape": 1}
    y = Parameter(f32, [2, 1, 5, 3], "y")
    assert apply(Model([transpose(y, [0, 3, 1, 2])], [y]), TransposeToReshape, modified=False) == {"Transpose": 1}


@pytest.mark.parametrize("batch", [2, "N"])
def test_keys_that_are_transposed_flat_are_transposed_at_once(batch: Any, apply: Apply) -> None:
    x = Parameter(f32, [batch, 3, 4, 5], "x")
    turned = transpose(ops.Reshape(x, ints(-1, 4, 5)), [0, 2, 1])
    model = Model([ops.Reshape(turned, ints(-1, 3, 5, 4), friendly_name="y")], [x])
    assert apply(model, ShapeSimplification, FlattenedTransposeFusion, IdentityElimination) == {"Transpose": 1}


def test_what_is_split_otherwise_than_it_was_joined_keeps_one_reshape(apply: Apply) -> None:
    x = Parameter(f32, [2, 3, 2, 4, 5], "x")
    turned = transpose(ops.Reshape(x, ints(12, 4, 5)), [0, 2, 1])
    model = Model([ops.Reshape(turned, ints(2, 6, 5, 4))], [x])
    assert apply(model, FlattenedTransposeFusion) == {"Reshape": 1, "Transpose": 1}


CHANNELS = Constant(np.arange(3, dtype=np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.Sigmoid(x),
        lambda x: ops.Clip(x, Constant(0.0), Constant(1.0)),
        lambda x: ops.Add(x, CHANNELS),
        lambda x: ops.Mul(Constant(np.ones([4, 1, 1], "f") * 2), x),
        lambda x: ops.PRelu(x, CHANNELS),
        lambda x: ops.Where(ops.Greater(x, Constant(0.5)), x, CHANNELS),
        lambda x: ops.Softmax(x, axis=-1),
        lambda x: ops.Softmax(x, axis=1),
        lambda x: ops.Concat(x, ops.Exp(x), axis=3),
        lambda x: ops.Sum(*ops.Split(x, ints(2, 2), axis=1, num_outputs=2).outputs),
        lambda x: ops.ReduceMax(x, ints(3), keepdims=1),
        lambda x: ops.ReduceMean(x, keepdims=1),
        lambda x: ops.Slice(x, ints(1), ints(9), ints(-1)),
        lambda x: ops.Pad(x, ints(0, 1, 2, 0, 0, 0, 0, 3)),
        lambda x: ops.DequantizeLinear(ops.QuantizeLinear(x, Constant(0.1)), Constant(0.1)),
    ],
)
def test_operators_that_do_not_mind_come_to_the_other_layout(make: Callable[[Node], Node], apply: Apply) -> None:
    assert apply(between(make), TransposeSinking)["Transpose"] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.Reshape(x, ints(2, 4, 5, 3)),
        lambda x: ops.LayerNormalization(x, Constant(np.ones(3, "f"))),
        lambda x: ops.Unsqueeze(ops.ReduceMax(x, ints(3), keepdims=0), ints(3)),
        lambda x: ops.MatMul(x, Constant(np.ones([3, 3], "f"))),
        lambda x: ops.Pad(x, ints(0, 1, 2, 0, 0, 0, 0, 3), None, ints(3, 1, 0, 2)),
        lambda x: ops.Slice(x, ints(0, 1, 0, 0), ints(9, 9, 9, 9)),
    ],
)
def test_operators_that_mind_stay(make: Callable[[Node], Node], apply: Apply) -> None:
    assert apply(between(make), TransposeSinking, modified=False)["Transpose"] == 2


def test_an_operator_of_an_extension_moves_if_it_is_declared_pointwise(apply: Apply) -> None:
    def operator(name: str, **facts: Any) -> Operator:
        half = lambda x: np.asarray(x / 2, x.dtype)  # noqa: E731
        return Operator(
            name=name, domain="test.layout", inputs=["x"], infer=lambda types, _: types[0], evaluate=half, **facts
        )

    define([operator("Half", traits=Traits(pointwise=True)), operator("Unknown")], "layout 1")
    for name, left in (("Half", 0), ("Unknown", 2)):
        model = between(lambda x, name=name: ops.create(name, [x], domain="test.layout"))  # type: ignore[misc]
        assert apply(model, TransposeSinking, modified=not left)["Transpose"] == left


def test_nothing_moves_where_transposes_would_not_get_fewer(apply: Apply) -> None:
    x, y = Parameter(f32, SHAPE, "x"), Parameter(f32, [2, 4, 5, 3], "y")
    model = Model([ops.Neg(ops.Add(transpose(x, LAST), y))], [x, y])
    assert apply(model, TransposeSinking, modified=False)["Transpose"] == 1


def test_a_residual_in_the_other_layout_pays_where_two_go(apply: Apply) -> None:
    x, y = Parameter(f32, SHAPE, "x"), Parameter(f32, [2, 4, 5, 3], "y")
    total = ops.Add(ops.Relu(transpose(x, LAST)), y)
    model = Model([ops.Neg(transpose(total, FIRST)), ops.Exp(transpose(ops.Abs(total), FIRST))], [x, y])
    assert apply(model, TransposeSinking)["Transpose"] == 1


def test_network_outputs_keep_their_names(apply: Apply) -> None:
    x = Parameter(f32, SHAPE, "x")
    inner = ops.Relu(transpose(x, LAST), friendly_name="inner")
    model = Model([ops.Transpose(inner, perm=FIRST, friendly_name="y")], [x])
    assert apply(model, TransposeSinking) == {"Relu": 1}
    assert model.result("y").input_value(0).node.friendly_name == "y"


OPERATORS: list[Callable[[Node, Node], Node]] = [
    lambda x, y: ops.Relu(x),
    lambda x, y: ops.Add(x, y),
    lambda x, y: ops.Mul(x, Constant(np.linspace(0.5, 1.5, 3, dtype=np.float32).reshape(3, 1, 1))),
    lambda x, y: ops.Softmax(x, axis=2),
    lambda x, y: ops.Max(y, x),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["op", "turn"]), st.integers(0, 5), st.integers(0, 5)), max_size=14))
def test_whatever_the_graph_results_stay_and_transposes_do_not_grow(steps: list[tuple[str, int, int]]) -> None:
    """Random graphs of operators and transposes over tensors of one shape in all layouts."""
    x = Parameter(f32, [3, 3, 3, 3], "x")
    values: list[Node] = [x]
    for kind, choice, source in steps:
        a, b = values[-1], values[source % len(values)]
        turn = [LAST, FIRST, [0, 1, 3, 2], [3, 2, 1, 0], LAST, FIRST][choice]
        values.append(transpose(a, turn) if kind == "turn" else OPERATORS[choice % len(OPERATORS)](a, b))
    model = Model([values[-1], values[len(values) // 2]] if len(values) > 2 else [values[-1]], [x])
    before = model.clone()
    manager = Manager(checked=True)
    manager.register_pass(TransposeSinking)
    manager.run_passes(model)
    check_equivalence(before, model)
    counts = [sum(node.op_type == "Transpose" for node in m.ordered_nodes()) for m in (before, model)]
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("name", ["convnext.dynamo20.static", "convnext.script14.static"])
def test_all_transposes_of_a_convnext_vanish_where_the_device_asks(
    name: str, load: Callable[[str], Model], count: Callable[[Model], Counter[str]], feed: Callable[[Model], Any]
) -> None:
    model = load(name)
    before = model.clone()
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(ChannelsFirstSinking)
    manager.run_passes(model)
    operators = count(model)
    assert operators["Transpose"] == 0
    assert operators["MatMul"] == operators["LayerNormalization"] == 0
    assert operators["ChannelNormalization"] == 5
    check_equivalence(before, model, inputs=feed(before))
