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
    nodes = list(prepare_model(model).graph.ordered_nodes())
    kinds = [node.op_type for node in nodes]
    assert fused in kinds
    assert {"DequantizeLinear", "Conv", "MatMul"}.isdisjoint(kinds)
    quantized_inputs = [node.input_value(0).node for node in nodes if node.op_type == "QuantizeLinear"]
    assert all(isinstance(source, Parameter) for source in quantized_inputs)
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
    expected = evaluate_model(model, [value])[0]
    # Both add 16 products, which may cancel, in some order.
    atol = 16 * 2**-24 * np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=atol)


def test_asymmetric_weights_are_computed_on_integers() -> None:
    x = Parameter(f32, [1, 16, 4, 4], "x")
    codes = Constant(random(3).integers(0, 256, (8, 16, 1, 1)).astype(np.uint8))
    w = dequantized(codes, 0.01, 99)
    model = Model([ops.Conv(dequantized(quantized(x, X_SCALE, 100), X_SCALE, 100), w)], [x])
    assert "QuantizedConv" in {node.op_type for node in prepare_model(model).graph.ordered_nodes()}
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


def check_bytes(result: OutputLike, *inputs: Parameter, fused: str, quanta: int = 0) -> None:
    """Assert that CPU computes `result` of 8-bit inputs natively, on integers, with at most this difference."""
    model = Model([result], inputs)
    kinds = [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
    assert fused in kinds
    assert {"QuantizeLinear", "DequantizeLinear", "Cast", "Div"}.isdisjoint(kinds)
    check_exact(result, *inputs, quanta=quanta)


def check_exact(result: OutputLike, *inputs: Parameter, quanta: int = 0) -> None:
    """Assert that CPU computes `result` of 8-bit inputs natively, with at most this difference."""
    model = Model([result], inputs)
    values = {}
    for index, x in enumerate(inputs):
        kind, limits = x.output(0).element_type, np.iinfo(x.output(0).element_type.numpy)
        codes = random(index).integers(limits.min, limits.max + 1, x.output(0).shape.get_shape())
        values[x.friendly_name] = codes.astype(kind.numpy)
    core = Core()
    assert {s.level for s in core.query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    (expected,) = evaluate_model(model, list(values.values()))
    (actual,) = core.compile_model(model, "CPU")(values).values()
    assert actual.dtype == expected.dtype
    assert np.abs(actual.astype(np.int64) - expected).max(initial=0) <= quanta


@pytest.mark.parametrize("activation", ["Sigmoid", "HardSwish", "Gelu", "LeakyRelu", "Tanh", "Elu", "Softplus"])
@pytest.mark.parametrize("kind", [u8, i8], ids=str)
def test_activations_of_codes(activation: str, kind: ElementType) -> None:
    x = Parameter(kind, [2, 33, 9, 7], "x")
    value = ops.create(activation, [dequantized(x, X_SCALE, 17, kind)])
    check_bytes(quantized(value, 0.02, 3, kind), x, fused="ByteTable")


def test_activations_between_convolutions_stay_in_blocks() -> None:
    """Swish as onnxruntime's tool quantizes it, with a quantized Sigmoid."""
    x = Parameter(u8, [1, 32, 9, 7], "x")
    read = dequantized(x, X_SCALE, 117)
    value = quantized(ops.Conv(read, weights(40, 32, 3, 3)), Y_SCALE, 120)
    factor = dequantized(quantized(ops.Sigmoid(dequantized(value, Y_SCALE, 120)), 1 / 256, 0), 1 / 256, 0)
    active = quantized(ops.Mul(dequantized(value, Y_SCALE, 120), factor), 0.06, 20)
    result = quantized(ops.Conv(dequantized(active, 0.06, 20), weights(16, 40, 1, 1)), Y_SCALE, 130)
    check_bytes(result, x, fused="ByteTable", quanta=1)


def integer_product(a: Parameter, b: OutputLike, a_zero: Array = None, b_zero: Array = None) -> Node:
    zeros = [None if zero is None else Constant(zero) for zero in (a_zero, b_zero)]
    return ops.create("MatMulInteger", [a, b, *zeros])


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((7, 30), (30, 33)),
        ((7, 300), (300, 33)),
        ((2, 3, 9, 270), (3, 270, 20)),
        ((2, 1, 5, 300), (1, 4, 300, 16)),
        ((1, 400), (400, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kinds", [(u8, u8), (u8, i8), (i8, u8), (i8, i8)], ids=str)
def test_integer_products_of_computed_matrices(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], kinds: tuple[ElementType, ElementType]
) -> None:
    a, b = Parameter(kinds[0], a_shape, "a"), Parameter(kinds[1], b_shape, "b")
    zeros = [np.array(3, kinds[0].numpy), np.array(120, kinds[1].numpy)]
    check_bytes(integer_product(a, b, *zeros), a, b, fused="MatMulInteger")
    check_bytes(integer_product(a, b), a, b, fused="MatMulInteger")


def test_integer_products_with_zero_points_of_rows_and_columns() -> None:
    a, b = Parameter(u8, (7, 300), "a"), Parameter(i8, (300, 33), "b")
    zeros = random(8).integers(0, 256, 7).astype(np.uint8), random(9).integers(-128, 128, 33).astype(np.int8)
    check_bytes(integer_product(a, b, *zeros), a, b, fused="MatMulInteger")


@pytest.mark.parametrize("zero", [None, np.array(0, np.uint8), np.array(77, np.uint8), np.arange(33, dtype=np.uint8)])
def test_integer_products_with_asymmetric_weights(zero: Array) -> None:
    a = Parameter(u8, (2, 7, 300), "a")
    b = Constant(random(7).integers(0, 256, (300, 33)).astype(np.uint8))
    check_bytes(integer_product(a, b, np.array(9, np.uint8), zero), a, fused="MatMulInteger")


@pytest.mark.parametrize("kinds", [(u8, u8), (i8, i8), (u8, i8)], ids=str)
@pytest.mark.parametrize("is_quantized", [False, True], ids=["f32", "codes"])
def test_products_of_two_quantized_matrices(kinds: tuple[ElementType, ElementType], is_quantized: bool) -> None:
    """As the scores of an attention."""
    a, b = Parameter(kinds[0], (2, 3, 20, 24), "a"), Parameter(kinds[1], (2, 3, 24, 20), "b")
    product = ops.MatMul(dequantized(a, X_SCALE, 100, kinds[0]), dequantized(b, 0.03, 11, kinds[1]))
    if is_quantized:
        check_bytes(quantized(product, 0.5, 90, kinds[0]), a, b, fused="QuantizedProduct", quanta=1)
    else:
        values = {"a": a, "b": b}
        codes = {n: random(i).integers(0, 100, p.output(0).shape.get_shape()).astype(p.output(0).element_type.numpy)
                 for i, (n, p) in enumerate(values.items())}  # fmt: skip
        model = Model([product], [a, b])
        assert "QuantizedProduct" in [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
        (expected,) = evaluate_model(model, list(codes.values()))
        (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(codes).values()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
@pytest.mark.parametrize("operator", ["GlobalAveragePool", "ReduceMean", "AveragePool"])
def test_averages_of_codes(operator: str, kind: ElementType) -> None:
    x = Parameter(kind, [2, 20, 9, 7], "x")
    read = dequantized(x, X_SCALE, 17, kind)
    if operator == "ReduceMean":
        value = ops.ReduceMean(read, Constant(np.array([2, 3])))
    elif operator == "AveragePool":
        value = ops.AveragePool(read, kernel_shape=[3, 2], pads=[1, 1, 1, 0], strides=[2, 1], count_include_pad=1)
    else:
        value = ops.GlobalAveragePool(read)
    check_bytes(quantized(value, 0.02, 3, kind), x, fused="QuantizedAveragePool", quanta=1)


@pytest.mark.parametrize("kinds", [(u8, u8), (i8, u8)], ids=str)
@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((2, 20, 9, 7), (2, 20, 9, 7)), ((2, 20, 9, 7), (2, 20, 1, 1)), ((2, 20, 1, 1), (2, 20, 9, 7)), ((5, 9), (5, 9))],
    ids=str,
)
def test_sums_and_products_of_codes(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], operator: str, kinds: tuple[ElementType, ElementType]
) -> None:
    a, b = Parameter(kinds[0], a_shape, "a"), Parameter(kinds[1], b_shape, "b")
    value = ops.create(operator, [dequantized(a, X_SCALE, 7, kinds[0]), dequantized(b, 0.03, 90, kinds[1])])
    check_bytes(quantized(value, 0.1, 3), a, b, fused="QuantizedBinary", quanta=1)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
@pytest.mark.parametrize(("shape", "columns"), [((2, 17, 40), 48), ((3, 64), 33)], ids=str)
@pytest.mark.parametrize("after", [None, "Relu", "residual", "Sigmoid"])
def test_a_bias_after_the_quantization_of_a_product(
    shape: tuple[int, ...], columns: int, after: str | None, kind: ElementType
) -> None:
    """As onnxruntime's tool quantizes a linear layer."""
    x, residual = Parameter(u8, shape, "x"), Parameter(kind, (*shape[:-1], columns), "r")
    product = ops.MatMul(dequantized(x, X_SCALE, 117), weights(shape[-1], columns, axis=1))
    sums = dequantized(quantized(product, Y_SCALE, 12, kind), Y_SCALE, 12, kind)
    bias = Constant(random(6).uniform(-3, 3, columns).astype(np.float32))
    value = ops.Add(bias, sums)
    if after == "residual":
        value = ops.Add(value, dequantized(residual, 0.03, 5, kind))
    elif after is not None:
        value = ops.create(after, [value])
    inputs = [x, residual] if after == "residual" else [x]
    result = quantized(value, Y_SCALE * 1.3, 20, kind)
    assert "Add" not in [node.op_type for node in prepare_model(Model([result], inputs)).graph.ordered_nodes()]
    check_bytes(result, *inputs, fused="QuantizedMatMul", quanta=2 if after == "residual" else 1)


def test_two_biases_after_the_quantization_of_a_product_are_two_additions() -> None:
    x = Parameter(u8, (5, 40), "x")
    product = ops.MatMul(dequantized(x, X_SCALE, 117), weights(40, 24, axis=1))
    first, second = (Constant(random(seed).uniform(-3, 3, 24).astype(np.float32)) for seed in (6, 7))
    value = ops.Add(dequantized(quantized(product, Y_SCALE, 12), Y_SCALE, 12), first)
    value = ops.Add(dequantized(quantized(value, 0.2, 3), 0.2, 3), second)
    model = Model([quantized(ops.Add(value, second), 0.3, 4)], [x])
    codes = random(1).integers(0, 256, (5, 40)).astype(np.uint8)
    (expected,) = evaluate_model(model, [codes])
    (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": codes}).values()
    assert np.abs(actual.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("kinds", [(u8, u8), (i8, u8), (u8, i8)], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 20), (2, 300), (4, 64), (7, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.02, 0.9, 1.3e36])
def test_softmax_of_codes(shape: tuple[int, ...], scale: float, kinds: tuple[ElementType, ElementType]) -> None:
    """Scores with a mask of the lowest number of f32 have a scale of 1e36."""
    x = Parameter(kinds[0], shape, "x")
    value = ops.Softmax(dequantized(x, scale, 90, kinds[0]))
    zero = np.iinfo(kinds[1].numpy).min
    check_bytes(quantized(value, 1 / 255, zero, kinds[1]), x, fused="QuantizedSoftmax", quanta=1)
    check_bytes(quantized(value, 1 / 7, zero + 3, kinds[1]), x, fused="QuantizedSoftmax", quanta=1)


def test_softmax_of_f32_as_codes() -> None:
    x = Parameter(f32, (6, 75), "x")
    model = Model([quantized(ops.Softmax(x), 1 / 255, 0)], [x])
    assert "QuantizedSoftmax" in [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
    values = random(1).normal(0, 3, (6, 75)).astype(np.float32)
    values[1, 7], values[2, 3], values[3] = np.nan, np.inf, -np.inf
    values[4] = [-200, *[-400] * 74]
    (expected,) = evaluate_model(model, [values])
    (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": values}).values()
    assert np.abs(actual.astype(int) - expected).max() <= 1
    assert (actual[1:4] == 0).all()


def test_softmax_of_codes_along_another_axis_stays_in_f32() -> None:
    x = Parameter(u8, (3, 5, 20), "x")
    model = Model([quantized(ops.Softmax(dequantized(x, 0.1, 90), axis=1), 1 / 255, 0)], [x])
    kinds = [node.op_type for node in prepare_model(model).graph.ordered_nodes()]
    assert kinds.count("Softmax") == 1
    codes = random(1).integers(0, 256, (3, 5, 20)).astype(np.uint8)
    (expected,) = evaluate_model(model, [codes])
    (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": codes}).values()
    assert np.abs(actual.astype(int) - expected).max() <= 1


def test_a_choice_between_codes_and_a_number_is_a_table() -> None:
    """As a guard against NaN after a Softmax."""
    x = Parameter(u8, [2, 33, 9], "x")
    value = dequantized(x, X_SCALE, 17)
    guarded = ops.Where(ops.IsNaN(value), Constant(np.float32(0)), value)
    check_bytes(quantized(guarded, 0.02, 3, i8), x, fused="ByteTable")


def test_squeeze_and_excitation_stays_in_codes() -> None:
    x = Parameter(u8, [1, 32, 9, 7], "x")
    value = quantized(ops.Conv(dequantized(x, X_SCALE, 117), weights(40, 32, 3, 3)), Y_SCALE, 120)
    mean = quantized(ops.GlobalAveragePool(dequantized(value, Y_SCALE, 120)), 0.05, 110)
    gate = quantized(ops.Conv(dequantized(mean, 0.05, 110), weights(40, 40, 1, 1)), Y_SCALE, 100)
    factor = dequantized(quantized(ops.Sigmoid(dequantized(gate, Y_SCALE, 100)), 1 / 256, 0), 1 / 256, 0)
    result = quantized(ops.Mul(dequantized(value, Y_SCALE, 120), factor), 0.06, 20)
    check_bytes(result, x, fused="QuantizedBinary", quanta=2)


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), [
    ((2, 40, 9, 7), (24, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 20, 9, 7), (24, 20, 1, 1), {}),
    ((1, 300, 5, 6), (33, 300, 1, 1), {"strides": [2, 1]}),
    ((1, 3, 33, 31), (24, 3, 10, 10), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((1, 64, 9, 9), (64, 32, 3, 3), {"group": 2, "pads": [2, 0, 1, 1]}),
    ((2, 70, 50), (20, 70, 5), {"strides": [2], "pads": [2, 1]}),
    ((1, 48, 6, 5), (36, 12, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),  # computed as one group
    ((2, 64, 5, 6), (64, 8, 1, 2), {"group": 8}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kinds", [(u8, i8), (i8, u8), (u8, u8)], ids=str)
def test_integer_convolutions(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], kinds: tuple[ElementType, ...]
) -> None:
    """Zero points of x are computed, as in dynamic quantization; zero points of weights are 0, in the middle, or at the
    end."""
    x, zero = Parameter(kinds[0], x_shape, "x"), Parameter(kinds[0], (), "zero")
    limits = np.iinfo(kinds[1].numpy)
    codes = Constant(random(7).integers(limits.min, limits.max + 1, w_shape).astype(kinds[1].numpy))
    for point in (0, 100, limits.min):
        sums = ops.ConvInteger(x, codes, zero, Constant(np.array(point, kinds[1].numpy)), **attributes)
        check_bytes(sums, x, zero, fused="ConvInteger")
    points = Constant(random(8).integers(limits.min, limits.max + 1, w_shape[0]).astype(kinds[1].numpy))
    check_bytes(ops.ConvInteger(x, codes, zero, points, **attributes), x, zero, fused="ConvInteger")
    check_bytes(ops.ConvInteger(x, codes, **attributes), x, fused="ConvInteger")


@pytest.mark.parametrize(("group", "channels", "dilation"), [(1, 40, 1), (2, 40, 1), (40, 1, 2), (2, 500, 1)])
def test_integer_convolutions_without_a_kernel_are_exact(group: int, channels: int, dilation: int) -> None:
    """Weights and zero points are computed; groups are not multiples of blocks; sums are long."""
    x, codes = Parameter(u8, (1, group * channels, 9, 7), "x"), Parameter(i8, (2 * group, channels, 3, 3), "w")
    x_zero, zeros = Parameter(u8, (), "x_zero"), Parameter(i8, (2 * group,), "w_zero")
    attributes = {"group": group, "dilations": [dilation] * 2, "pads": [1, 1, 1, 1]}
    check_exact(ops.ConvInteger(x, codes, x_zero, zeros, **attributes), x, codes, x_zero, zeros)
    constant = Constant(random(7).integers(-128, 128, (2 * group, channels, 3, 3)).astype(np.int8))
    computed = ops.ConvInteger(x, constant, x_zero, zeros, **attributes)
    check_exact(computed, x, x_zero, zeros)


def test_products_with_a_vector_are_exact() -> None:
    a, b = Parameter(u8, (3, 700), "a"), Parameter(u8, (700,), "b")
    check_exact(integer_product(a, b, np.array(3, np.uint8), np.array(200, np.uint8)), a, b)


def test_a_dynamic_convolution_is_of_integers() -> None:
    x = Parameter(f32, [1, 40, 9, 7], "x")
    quantize = ops.DynamicQuantizeLinear(x)
    codes, scale, zero = quantize.outputs
    sums = ops.ConvInteger(codes, Constant(random(3).integers(-127, 128, (20, 40, 3, 3)).astype(np.int8)), zero)
    scales = ops.Mul(scale, Constant(random(4).uniform(0.002, 0.01, (1, 20, 1, 1)).astype(np.float32)))
    result = ops.Mul(ops.Cast(sums, to=f32.onnx), scales)
    model = Model([result], [x])
    value = random(5).uniform(-3, 3, (1, 40, 9, 7)).astype(np.float32)
    (expected,) = evaluate_model(model, [value])
    (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": value}).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [u8, i8], ids=str)
def test_nearest_neighbours_of_codes_stay_in_blocks(kind: ElementType) -> None:
    x = Parameter(kind, [1, 20, 5, 4], "x")
    value = quantized(ops.Conv(dequantized(x, X_SCALE, 3, kind), weights(24, 20, 3, 3)), Y_SCALE, 7, kind)
    scales = Constant(np.array([1, 1, 2, 3], np.float32))
    resized = ops.Resize(dequantized(value, Y_SCALE, 7, kind), None, scales, mode="nearest")
    read = dequantized(quantized(resized, Y_SCALE, 7, kind), Y_SCALE, 7, kind)
    result = quantized(ops.Conv(read, weights(16, 24, 1, 1)), 0.2, 9, kind)
    check_bytes(result, x, fused="Resize", quanta=1)


def test_channels_of_codes_become_pixels() -> None:
    x = Parameter(u8, [1, 24, 5, 4], "x")
    moved = ops.DepthToSpace(dequantized(x, X_SCALE, 3), blocksize=2)
    read = dequantized(quantized(moved, X_SCALE, 3), X_SCALE, 3)
    result = quantized(ops.Conv(read, weights(16, 6, 1, 1)), Y_SCALE, 9)
    check_bytes(result, x, fused="DepthToSpace", quanta=1)
