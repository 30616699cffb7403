"""Convolutions and products between quantizations, by integer kernels, against their definition in f32.

If a case fails, quantized models give other answers on CPU than their definition, or run without integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cpu.transform import prepare_model

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Node, OutputLike, Parameter, f32
from engine.ir.element_type import i8, i32, u8
from engine.ops import evaluate_model
from engine.plugin_api import SupportLevel

Array = Any
X_SCALE, Y_SCALE = 0.05, 0.11


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def quantized(value: OutputLike, scale: float, zero: int, kind: ElementType = u8) -> Node:
    return ops.QuantizeLinear(value, Constant(np.float32(scale)), Constant(np.array(zero, kind.numpy)))


def dequantized(value: OutputLike, scale: float, zero: int, kind: ElementType = u8) -> Node:
    return ops.DequantizeLinear(value, Constant(np.float32(scale)), Constant(np.array(zero, kind.numpy)))


def weights(*shape: int, axis: int = 0, kind: ElementType = i8) -> Node:
    """Symmetric weights with a scale for each index of an axis."""
    center = 0 if kind is i8 else 128
    codes = (random(3).integers(-128, 128, shape) + center).astype(kind.numpy)
    scales = random(4).uniform(0.002, 0.01, shape[axis]).astype(np.float32)
    return ops.DequantizeLinear(
        Constant(codes), Constant(scales), Constant(np.full(shape[axis], center, kind.numpy)), axis=axis
    )


def check(result: OutputLike, *inputs: Parameter, fused: str, scale: float = 1.0) -> None:
    """Assert that CPU computes `result` natively with a fused operator, within one quantum of the definition."""
    model = Model([result], inputs)
    values = {
        x.friendly_name: random(i).uniform(-3, 3, x.output(0).shape.get_shape()).astype(np.float32)
        for i, x in enumerate(inputs)
    }
    kinds = [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
    assert fused in kinds
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "MatMul"}.isdisjoint(kinds)
    core = Core()
    assert {s.level for s in core.query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    (expected,) = evaluate_model(model, list(values.values()))
    network = core.compile_model(model, "CPU")
    (actual,) = network(values).values()
    assert actual.dtype == expected.dtype
    difference = np.abs(actual.astype(np.float64) - expected)
    assert difference.max() <= scale * (1 + 1e-5) if actual.dtype.kind != "f" else difference.max() <= scale * 1e-5
    # Only sums near the middle of two codes may differ.
    assert (difference > scale / 2).mean() < 0.02


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 40, 9, 7), (24, 40, 1, 1), {}),
    ((2, 16, 9, 20), (33, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 15, 16), (16, 16, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 0, 1], "strides": [2, 1]}),
    ((1, 3, 33, 31), (24, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((2, 1, 12, 12), (5, 1, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 3]}),
    ((1, 24, 12, 13), (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1]}),
    ((2, 35, 13, 12), (35, 1, 5, 5), {"group": 35, "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((1, 64, 9, 9), (64, 32, 3, 3), {"group": 2}),
    ((2, 12, 50), (20, 12, 5), {"strides": [2], "pads": [2, 1]}),
    ((1, 4, 50), (6, 4, 3), {}),
]


@pytest.mark.parametrize("kinds", [(u8, i8), (i8, i8), (u8, u8)], ids=str)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONVOLUTIONS, ids=str)
def test_convolutions(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], kinds: tuple[ElementType, ...]
) -> None:
    kind, w_kind = kinds
    zero = 117 if kind is u8 else -11
    x = Parameter(f32, x_shape, "x")
    read = dequantized(quantized(x, X_SCALE, zero, kind), X_SCALE, zero, kind)
    bias = Constant(random(5).uniform(-3, 3, w_shape[0]).astype(np.float32))
    result = ops.Conv(read, weights(*w_shape, kind=w_kind), bias, **attributes)
    check(quantized(ops.Relu(result), Y_SCALE, 3, kind), x, fused="QuantizedConv")


@pytest.mark.parametrize("rounds_first", [False, True], ids=["sum", "sum-of-codes"])
@pytest.mark.parametrize("activation", ["", "Relu", "Clip", "LeakyRelu", "HardSwish"])
def test_residuals_and_activations(activation: str, rounds_first: bool) -> None:
    x, y = Parameter(f32, [1, 16, 8, 9], "x"), Parameter(f32, [1, 20, 8, 9], "y")
    read = dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100)
    value: Node = ops.Conv(read, weights(20, 16, 3, 3), pads=[1, 1, 1, 1])
    if rounds_first:
        value = dequantized(quantized(value, 0.07, 130), 0.07, 130)
    value = ops.Add(dequantized(quantized(y, 0.03, 90, i8), 0.03, 90, i8), value)
    if activation == "Clip":
        value = ops.Clip(value, Constant(np.float32(-1)), Constant(np.float32(6)))
    elif activation:
        value = ops.create(activation, [value])
    check(quantized(value, Y_SCALE, 77), x, y, fused="QuantizedConv")


def test_a_result_in_f32() -> None:
    x = Parameter(f32, [1, 16, 8, 9], "x")
    read = dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100)
    check(ops.Conv(read, weights(20, 16, 3, 3)), x, fused="QuantizedConv", scale=10.0)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
@pytest.mark.parametrize("shape", [(5, 40), (1, 64), (2, 7, 33)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_products(shape: tuple[int, ...], transposed: bool, kind: ElementType) -> None:
    x, depth = Parameter(f32, shape, "x"), shape[-1]
    zero = 100 if kind is u8 else 5
    read = dequantized(quantized(x, X_SCALE, zero, kind), X_SCALE, zero, kind)
    bias = Constant(random(5).uniform(-3, 3, 50).astype(np.float32))
    if transposed and len(shape) == 2:
        value = ops.Gemm(read, weights(50, depth), bias, transB=1)
    else:
        value = ops.Add(ops.MatMul(read, weights(depth, 50, axis=1)), bias)
    check(quantized(value, Y_SCALE, zero, kind), x, fused="QuantizedMatMul")


def test_a_product_with_scales_that_are_computed() -> None:
    """The form that dynamic quantization writes."""
    x = Parameter(f32, [3, 600], "x")
    codes, scale, zero = ops.DynamicQuantizeLinear(x).outputs
    matrix = Constant(random(3).integers(-127, 128, (600, 50)).astype(np.int8))
    factor = Constant(random(4).uniform(0.002, 0.01, 50).astype(np.float32))
    sums = ops.MatMulInteger(codes, matrix, zero, Constant(np.zeros((), np.int8)))
    value = ops.Mul(ops.Cast(sums, to=f32.onnx), ops.Mul(scale, factor))
    bias = Constant(random(5).uniform(-3, 3, 50).astype(np.float32))
    check(ops.Add(value, bias), x, fused="QuantizedMatMul", scale=50.0)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
def test_sums_of_integers_are_exact(kind: ElementType) -> None:
    """Sums beyond 2^24, which f32 would round."""
    x, zero = Parameter(kind, [4, 5000], "x"), Parameter(kind, [], "zero")
    matrix = np.full((5000, 20), 127, np.int8)
    model = Model([ops.MatMulInteger(x, Constant(matrix), zero)], [x, zero])
    limits = np.iinfo(kind.numpy)
    values = {
        "x": random(1).integers(limits.max - 3, limits.max + 1, (4, 5000)).astype(kind.numpy),
        "zero": np.array(limits.min, kind.numpy),
    }
    core = Core()
    assert {s.level for s in core.query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    (actual,) = core.compile_model(model, "CPU")(values).values()
    np.testing.assert_array_equal(actual, evaluate_model(model, list(values.values()))[0])


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
@pytest.mark.parametrize(
    "attributes", [{}, {"pads": [1, 0, 2, 1], "ceil_mode": 1}, {"dilations": [2, 1], "pads": [2, 0, 2, 0]}], ids=str
)
def test_the_largest_codes(kind: ElementType, attributes: dict[str, Any]) -> None:
    x = Parameter(kind, [1, 2, 5, 6], "x")
    model = Model([ops.MaxPool(x, kernel_shape=[3, 2], strides=[2, 2], **attributes)], [x])
    limits = np.iinfo(kind.numpy)
    value = random(0).integers(limits.min, limits.max, (1, 2, 5, 6)).astype(kind.numpy)
    core = Core()
    assert {s.level for s in core.query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    (actual,) = core.compile_model(model, "CPU")({"x": value}).values()
    np.testing.assert_array_equal(actual, evaluate_model(model, [value])[0])


@pytest.mark.parametrize("channels", [(16, 32), (8, 24)], ids=str)
def test_maps_of_codes_are_joined(channels: tuple[int, int]) -> None:
    """Parts with different scales, joined and requantized."""
    x = Parameter(f32, [1, 16, 8, 9], "x")
    read = dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100)
    parts = []
    for index, count in enumerate(channels):
        part = quantized(ops.Relu(ops.Conv(read, weights(count, 16, 1, 1))), 0.1 + 0.02 * index, 0)
        parts.append(dequantized(part, 0.1 + 0.02 * index, 0))
    check(quantized(ops.Concat(*parts, axis=1), 0.12, 0), x, fused="QuantizedConv")


@pytest.mark.parametrize("scale", [0.0, -0.01, np.nan, np.inf, 1e-40])
def test_scales_without_integer_kernels_are_computed_as_specified(scale: float) -> None:
    x = Parameter(f32, [1, 16, 4, 4], "x")
    codes = Constant(random(3).integers(-128, 128, (8, 16, 1, 1)).astype(np.int8))
    w = ops.DequantizeLinear(codes, Constant(np.float32(scale)))
    model = Model([ops.Conv(dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100), w)], [x])
    value = random(1).uniform(-3, 3, (1, 16, 4, 4)).astype(np.float32)
    (actual,) = Core().compile_model(model, "CPU")({"x": value}).values()
    np.testing.assert_allclose(actual, evaluate_model(model, [value])[0], rtol=1e-5, atol=1e-30)


def test_asymmetric_weights_are_computed_in_f32() -> None:
    x = Parameter(f32, [1, 16, 4, 4], "x")
    codes = Constant(random(3).integers(0, 256, (8, 16, 1, 1)).astype(np.uint8))
    w = dequantized(codes, 0.01, 99)
    model = Model([ops.Conv(dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100), w)], [x])
    assert "QuantizedConv" not in {node.op_type for node in prepare_model(model).graph.ordered_nodes()}
    value = random(1).uniform(-3, 3, (1, 16, 4, 4)).astype(np.float32)
    (actual,) = Core().compile_model(model, "CPU")({"x": value}).values()
    np.testing.assert_allclose(actual, evaluate_model(model, [value])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["i16", "u16", "u32", "u64"])
def test_other_integers_are_native(kind: str) -> None:
    """Arithmetic wraps, as in the reference evaluator."""
    element_type = ElementType.from_numpy(np.dtype(kind.replace("u", "uint").replace("i16", "int16")))
    x, y = Parameter(element_type, [3, 50], "x"), Parameter(element_type, [50], "y")
    total = ops.Add(ops.Mul(x, y), ops.Cast(ops.Cast(x, to=i32.onnx), to=element_type.onnx))
    model = Model([total, ops.Less(x, y), ops.Where(ops.Equal(x, y), x, y)], [x, y])
    limits = np.iinfo(element_type.numpy)
    values = {
        "x": random(1).integers(0, min(limits.max, 2**31 - 1), (3, 50)).astype(element_type.numpy),
        "y": random(2).integers(0, limits.max, 50, dtype=np.uint64).astype(element_type.numpy),
    }
    core = Core()
    assert {s.level for s in core.query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    actual = core.compile_model(model, "CPU")(values).values()
    for one, other in zip(actual, evaluate_model(model, list(values.values())), strict=True):
        np.testing.assert_array_equal(one, other)
