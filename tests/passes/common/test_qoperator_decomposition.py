"""Operators of codes as QDQ. If it fails, models quantized in QOperator format give other answers on CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Node, OutputLike, Parameter, f32
from engine.ir.element_type import i8, i32, u8
from engine.ops import evaluate_model
from engine.passes import Manager
from engine.passes.common.qoperator_decomposition import QOperatorDecomposition
from engine.plugin_api import SupportLevel

Array = Any
BYTES = [i8, u8]


def numbers(draw: st.DrawFn, element_type: ElementType, *shape: int) -> Array:
    limits = np.iinfo(element_type.numpy)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random.integers(limits.min, limits.max + 1, shape).astype(element_type.numpy)


def parameters(draw: st.DrawFn, element_type: ElementType, shape: tuple[int, ...], scale: float) -> list[Constant]:
    """A scale and a zero point: each a number, a vector of one, or (if `shape` is given) one for each index."""
    found = []
    for array in (np.float32(scale) * np.linspace(0.5, 1, 7, dtype=np.float32), numbers(draw, element_type, 7)):
        chosen = draw(st.sampled_from([(), (1,), *([shape] if shape else [])]))
        found.append(Constant(np.ascontiguousarray(array[: max(1, int(np.prod(chosen)))].reshape(chosen))))
    return found


def applied(node: Node, *inputs: Parameter) -> Model:
    model = Model([node], inputs)
    manager = Manager(checked=True)
    manager.register_pass(QOperatorDecomposition, enabled=True)
    manager.run_passes(model)
    return model


def kinds(model: Model) -> set[str]:
    return {node.op_type for node in model.ordered_nodes()} - {"Parameter", "Constant", "Result"}


def assert_within_a_quantum(node: Node, values: list[Array], *inputs: Parameter, kernel: str) -> None:
    original = Model([node], inputs).clone()
    model = applied(node, *inputs)
    assert kinds(model) == {"DequantizeLinear", kernel, "QuantizeLinear"}
    (got,), (wanted,) = evaluate_model(model, values), evaluate_model(original, values)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    types = [draw(st.sampled_from(BYTES)) for _ in range(2)]
    x, group = Parameter(types[0], [2, 4, 7, 6], "x"), draw(st.sampled_from([1, 2]))
    weights = Constant(numbers(draw, types[1], 6, 4 // group, 3, 2))  # type: ignore[arg-type]
    inputs: list[OutputLike] = [
        x, *parameters(draw, types[0], (), 0.03), weights, *parameters(draw, types[1], (6,), 0.02),  # type: ignore[arg-type]
        *parameters(draw, types[0], (), 0.9),  # type: ignore[arg-type]
    ]  # fmt: skip
    if draw(st.booleans()):
        inputs.append(Constant(np.arange(-300, 300, 100, dtype=np.int32)))
    attributes = draw(st.sampled_from([{}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, {"auto_pad": "SAME_UPPER"}]))
    node = ops.create("QLinearConv", inputs, {"group": group, **attributes}, friendly_name="conv")
    value = numbers(draw, types[0], 2, 4, 7, 6)  # type: ignore[arg-type]
    assert_within_a_quantum(node, [value], x, kernel="Conv")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products(data: st.DataObject) -> None:
    draw = data.draw
    types = [draw(st.sampled_from(BYTES)) for _ in range(2)]
    shapes = draw(st.sampled_from([((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((5,), (5, 4)), ((2, 3, 5), (2, 5, 4))]))
    a, b = Parameter(types[0], shapes[0], "a"), Parameter(types[1], shapes[1], "b")
    rows = (3,) if len(shapes[0]) > 1 else ()
    inputs: list[OutputLike] = [
        a, *parameters(draw, types[0], rows, 0.03), b, *parameters(draw, types[1], (4,), 0.02),  # type: ignore[arg-type]
        *parameters(draw, types[0], rows, 0.5),  # type: ignore[arg-type]
    ]  # fmt: skip
    values = [numbers(draw, t, *shape) for t, shape in zip(types, shapes, strict=True)]  # type: ignore[arg-type]
    assert_within_a_quantum(ops.QLinearMatMul(*inputs), values, a, b, kernel="MatMul")


def test_a_bias_is_rounded_once() -> None:
    """i32 numbers above 2^24 are not exact in f32; their product with the scales, computed in f64, is."""
    x, bias = Parameter(u8, [1, 1, 2, 2], "x"), Constant(np.int32([2**30 + 1]))
    scale, zero = Constant(np.float32(2**-15)), Constant(np.uint8(0))
    weights = Constant(np.zeros((1, 1, 1, 1), np.uint8))
    model = applied(ops.QLinearConv(x, scale, zero, weights, scale, zero, scale, zero, bias), x)
    (conv,) = (node for node in model.ordered_nodes() if node.op_type == "Conv")
    folded = conv.input_value(2).node
    assert isinstance(folded, Constant)
    assert folded.data.tolist() == [np.float32((2**30 + 1) * 2.0**-30)]


def scales(*kinds: ElementType) -> list[Parameter]:
    """Parameters of a tensor: a scale and a zero point that are inputs of the model."""
    return [Parameter(kind, []) for kind in kinds]


def test_one_scale_that_is_computed() -> None:
    a, b, quantization = Parameter(u8, [2, 3], "a"), Parameter(u8, [3, 4], "b"), scales(f32, u8)
    node = ops.QLinearMatMul(a, *quantization, b, *quantization, *quantization)
    assert kinds(applied(node, a, b, *quantization)) == {"DequantizeLinear", "MatMul", "QuantizeLinear"}


def test_a_bias_that_is_computed() -> None:
    scale, zero = Constant(np.float32(0.25)), Constant(np.uint8(0))
    x, w, bias = Parameter(u8, [1, 3, 4, 4], "x"), Parameter(u8, [2, 3, 1, 1], "w"), Parameter(i32, [2], "bias")
    conv = ops.QLinearConv(x, scale, zero, w, scale, zero, scale, zero, bias)
    random = np.random.default_rng(1)
    values = [random.integers(0, 9, shape).astype(np.uint8) for shape in ((1, 3, 4, 4), (2, 3, 1, 1))]
    values.append(np.int32([-150, 350]))
    original = Model([conv], [x, w, bias]).clone()
    model = applied(conv, x, w, bias)
    assert "Conv" in kinds(model)
    np.testing.assert_array_equal(evaluate_model(model, values), evaluate_model(original, values))


def test_what_cannot_be_expressed_stays() -> None:
    one, zero = Constant(np.float32(1)), Constant(np.uint8(0))
    per_matrix = Constant(np.ones((2, 1, 4), np.float32)), Constant(np.zeros((2, 1, 4), np.uint8))
    a, b = Parameter(u8, [2, 2, 3], "a"), Parameter(u8, [2, 3, 4], "b")
    product = ops.QLinearMatMul(a, one, zero, b, *per_matrix, one, zero)
    assert kinds(applied(product, a, b)) == {"QLinearMatMul"}


@pytest.mark.parametrize("name", ["QLinearConv", "QLinearMatMul"])
def test_cpu_computes_it_natively(name: str) -> None:
    one, zero = Constant(np.float32(0.5)), Constant(np.uint8(3))
    if name == "QLinearConv":
        x, weights = Parameter(u8, [1, 3, 4, 4], "x"), Constant(np.ones((2, 3, 1, 1), np.int8))
    else:
        x, weights = Parameter(u8, [2, 3], "x"), Constant(np.ones((3, 4), np.int8))
    node = ops.create(name, [x, one, zero, weights, one, Constant(np.int8(0)), one, zero], friendly_name="node")
    answer = Core().query_model(Model([node], [x]), "CPU")
    assert answer.nodes["node"].level is SupportLevel.NATIVE


@pytest.mark.parametrize("element_type", BYTES, ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolations_of_codes(mode: str, element_type: ElementType) -> None:
    """The format has a Resize that reads and writes codes, for which devices have kernels only in f32."""
    x = Parameter(element_type, [1, 3, 4, 5], "x")
    lowest = np.iinfo(element_type.numpy).min
    codes = (np.random.default_rng(1).integers(0, 256, (1, 3, 4, 5)) + lowest).astype(element_type.numpy)
    scales = Constant(np.array([1, 1, 2, 1.5], np.float32))
    assert_within_a_quantum(ops.Resize(x, None, scales, mode=mode), [codes], x, kernel="Resize")
    model = Model([ops.Resize(x, None, scales, mode=mode)], [x])
    assert {s.level for s in Core().query_model(model, "CPU").nodes.values()} == {SupportLevel.NATIVE}


def test_codes_of_the_nearest_elements_stay_codes() -> None:
    x = Parameter(u8, [1, 3, 4, 5], "x")
    node = ops.Resize(x, None, Constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    assert kinds(applied(node, x)) == {"Resize"}
