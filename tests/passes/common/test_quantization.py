"""Integer regions grow and stay integer. If it fails, quantized networks compute in floating point, or wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, f8e4m3fn, f32, i4, i16, u8
from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.qdq_propagation import DequantizeSinking, QuantizeHoisting, QuantizePairElimination

Apply = Callable[..., Counter[str]]
SCALE, ZERO = Constant(np.float32(0.05)), Constant(np.uint8(7))


def ints(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))


def quantized(x: Node) -> Node:
    return ops.QuantizeLinear(x, SCALE, ZERO)


def dequantized(x: Node) -> Node:
    return ops.DequantizeLinear(x, SCALE, ZERO)


MOVES: list[Callable[[Node], Node]] = [
    lambda x: ops.Reshape(x, ints(2, -1)),
    lambda x: ops.Transpose(x, perm=[0, 2, 3, 1]),
    lambda x: ops.Flatten(x),
    lambda x: ops.Slice(x, ints(0), ints(1), ints(2)),
    lambda x: ops.Gather(x, ints(1, 0), axis=1),
    lambda x: ops.Unsqueeze(x, ints(0)),
    lambda x: ops.GatherElements(x, Constant(np.zeros((2, 3, 4, 4), np.int64)), axis=2),
    lambda x: ops.Compress(x, Constant(np.array([True, False, True])), axis=1),
    lambda x: ops.ReverseSequence(x, ints(3, 1), batch_axis=0, time_axis=1),
    lambda x: ops.MaxPool(x, kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
]


@pytest.mark.parametrize("move", MOVES)
def test_between_integers_a_move_works_on_integers(move: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(u8, [2, 3, 4, 4], "x")
    model = Model([ops.Identity(quantized(move(dequantized(x))))], [x])
    operators = apply(model, DequantizeSinking, QuantizePairElimination)
    assert "DequantizeLinear" not in operators
    assert "QuantizeLinear" not in operators


@pytest.mark.parametrize("element_type", [i4, i16, f8e4m3fn], ids=str)
@pytest.mark.parametrize("move", MOVES)
def test_what_an_operator_does_not_take_stays_before_it(
    element_type: ElementType, move: Callable[[Node], Node], apply: Apply
) -> None:
    x = Parameter(element_type, [2, 3, 4, 4], "x")
    model = Model([ops.Neg(move(ops.DequantizeLinear(x, SCALE)))], [x])
    (moved,) = (n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "DequantizeLinear",
                                                                      "Neg", "Result"))  # fmt: skip
    takes = element_type in ops.get_op(moved.op_type).inputs[0].elements
    operators = apply(model, DequantizeSinking, modified=takes)
    assert operators == {"DequantizeLinear": 1, moved.op_type: 1, "Neg": 1}


def test_a_quantization_is_hoisted_past_a_reshape(apply: Apply) -> None:
    x = Parameter(f32, [2, 6], "x")
    model = Model([quantized(ops.Reshape(ops.Relu(x), ints(3, 4)))], [x])
    apply(model, QuantizeHoisting)
    (node,) = (node for node in model.ordered_nodes() if node.op_type == "Reshape")
    assert node.output(0).element_type is u8


def test_several_readers_keep_their_value(apply: Apply) -> None:
    x = Parameter(f32, [2, 6], "x")
    moved = ops.Reshape(ops.Relu(x), ints(3, 4))
    model = Model([quantized(moved), ops.Exp(moved)], [x])
    assert apply(model, QuantizeHoisting, modified=False)["Reshape"] == 1


@pytest.mark.parametrize(
    "second",
    [
        lambda x: ops.QuantizeLinear(x, Constant(np.float32(0.1)), ZERO),
        lambda x: ops.QuantizeLinear(x, SCALE, Constant(np.uint8(8))),
        lambda x: ops.QuantizeLinear(x, SCALE, Constant(np.int8(7))),
    ],
    ids=["scale", "zero-point", "type"],
)
def test_pairs_of_other_parameters_stay(second: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(u8, [4], "x")
    model = Model([second(dequantized(x))], [x])
    assert apply(model, QuantizePairElimination, modified=False)["QuantizeLinear"] == 1


def test_an_omitted_zero_point_is_zero(apply: Apply) -> None:
    x = Parameter(u8, [4], "x")
    pair = ops.QuantizeLinear(ops.DequantizeLinear(x, SCALE), SCALE, Constant(np.uint8(0)))
    assert apply(Model([ops.Reshape(pair, ints(2, 2))], [x]), QuantizePairElimination) == {"Reshape": 1}


def test_a_scale_per_channel_does_not_move(apply: Apply) -> None:
    x = Parameter(u8, [2, 3], "x")
    scales, zeros = Constant(np.float32([1, 2, 3])), Constant(np.uint8([1, 2, 3]))
    model = Model([ops.Transpose(ops.DequantizeLinear(x, scales, zeros, axis=1))], [x])
    assert apply(model, DequantizeSinking, modified=False)["Transpose"] == 1


def test_all_values_survive_a_pair(apply: Apply) -> None:
    x = Parameter(u8, [256], "x")
    for scale in (1e-30, 0.003, 1 / 3, 7.7e20):
        pair = ops.QuantizeLinear(
            ops.DequantizeLinear(x, Constant(np.float32(scale)), ZERO), Constant(np.float32(scale)), ZERO
        )
        model = Model([ops.Identity(pair)], [x])
        apply(model, QuantizePairElimination, inputs={"x": np.arange(256, dtype=np.uint8)})


def test_common_optimizations_keep_the_integer_path(count: Callable[[Model], Counter[str]]) -> None:
    """A quantized convolution: weights stay integers behind their DequantizeLinear."""
    x = Parameter(f32, [1, 3, 8, 8], "x")
    rng = np.random.default_rng(0)
    weights = Constant(rng.integers(-127, 127, [4, 3, 3, 3]).astype(np.int8))
    scales = Constant(rng.uniform(0.01, 0.1, 4).astype(np.float32))
    conv = ops.Conv(dequantized(quantized(x)), ops.DequantizeLinear(weights, scales, axis=0))
    moved = ops.Reshape(dequantized(quantized(conv)), ints(1, 4, -1))
    model = Model([dequantized(quantized(ops.Transpose(moved, perm=[0, 2, 1])))], [x])
    manager = Manager(checked=True)
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    operators = count(model)
    assert operators == {
        "QuantizeLinear": 2, "DequantizeLinear": 3, "Conv": 1, "Reshape": 1, "Transpose": 1,
    }  # fmt: skip
    (turned,) = (node for node in model.ordered_nodes() if node.op_type == "Transpose")
    assert turned.output(0).element_type is u8


def test_a_split_works_on_integers(apply: Apply) -> None:
    x = Parameter(u8, [1, 4, 2, 2], "x")
    halves = ops.Split(dequantized(x), axis=1, num_outputs=2)
    results = [ops.QuantizeLinear(value, SCALE, ZERO) for value in halves.outputs]
    operators = apply(Model(results, [x]), DequantizeSinking, QuantizePairElimination)
    assert operators["Split"] == 1
    assert not operators.keys() & {"DequantizeLinear", "QuantizeLinear"}


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_concat_of_equal_scales_works_on_integers(is_equal: bool, apply: Apply) -> None:
    x = Parameter(u8, [1, 4, 2, 2], "x")
    other = dequantized(x) if is_equal else ops.DequantizeLinear(x, Constant(np.float32(0.1)), ZERO)
    model = Model([ops.Exp(ops.Concat(dequantized(x), other, axis=1))], [x])
    assert apply(model, DequantizeSinking, modified=is_equal)["DequantizeLinear"] == (1 if is_equal else 2)


@pytest.mark.parametrize(
    ("clip", "moves"),
    [
        (lambda x: ops.Relu(x), True),
        (lambda x: ops.Clip(x, Constant(np.float32(0)), Constant(np.float32(100))), True),
        (lambda x: ops.Clip(x, None, Constant(np.float32(0.05) * np.float32(93))), True),
        (lambda x: ops.Clip(x, Constant(np.float32(0.02))), False),  # between two codes
        (lambda x: ops.Clip(x, Constant(np.float32(99))), False),  # above all codes
        (lambda x: ops.Clip(x, Constant(np.float32(np.nan))), False),
    ],
)
def test_a_clip_before_a_product_works_on_integers(clip: Callable[[Node], Node], moves: bool, apply: Apply) -> None:
    x, weights = Parameter(u8, [2, 6], "x"), Constant(np.ones((6, 3), np.float32))
    model = Model([ops.MatMul(clip(dequantized(x)), weights)], [x])
    inputs = {"x": np.arange(12, dtype=np.uint8).reshape(2, 6) * 20}
    apply(model, DequantizeSinking, modified=moves, inputs=inputs)
    factor = model.results[0].input_value(0).node.input_value(0).node
    assert (factor.op_type == "DequantizeLinear") == moves
