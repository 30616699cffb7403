"""Quantization as arithmetic in f32: the same numbers, bit for bit.

If this fails, quantized models give other answers on devices that compute them in f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, Result, f32
from engine.ir.element_type import f16, f64, i4, i8, i16, i32, u4, u8, u16
from engine.ops import evaluate_model
from engine.passes import Manager
from engine.passes.common.quantization_decomposition import DequantizedConstantFolding, QuantizationDecomposition

TYPES = [i4, u4, i8, u8, i16, u16]
SHAPE = (2, 3, 4)
VALUES = np.array([0, -0.0, 0.5, -0.5, 1e-9, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 127.5, -128.5], np.float32)


def decomposed(node: Node, x: Parameter, *parameters: Parameter) -> Model:
    model = Model([Result(node)], [x, *parameters])
    manager = Manager(checked=True)
    manager.register_pass(QuantizationDecomposition, enabled=True)
    assert manager.run_passes(model)
    return model


def kinds(model: Model) -> set[str]:
    return {node.op_type for node in model.ordered_nodes()}


def assert_equal(node: Node, x: Parameter, *values: Any) -> None:
    original = Model([Result(node)], [x]).clone()
    model = decomposed(node, x)
    assert not kinds(model) & {"QuantizeLinear", "DequantizeLinear"}
    (got,), (wanted,) = evaluate_model(model, list(values)), evaluate_model(original, list(values))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@st.composite
def scales(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A scale for the whole tensor, or one for each index of an axis."""
    axis = draw(st.integers(-3, 2))
    positive = st.floats(2.0**-20, 100, width=32)
    if draw(st.booleans()):
        return np.array(draw(positive), np.float32), axis
    return draw(arrays.arrays(np.float32, SHAPE[axis], elements=positive)), axis


def zero_point(draw: st.DrawFn, element_type: ElementType, shape: tuple[int, ...]) -> Constant | None:
    if not draw(st.booleans()):
        return None
    low, high = (-(1 << element_type.bits - 1), (1 << element_type.bits - 1) - 1)
    low, high = (low, high) if element_type.is_signed else (0, (1 << element_type.bits) - 1)
    whole = draw(arrays.arrays(np.int32, shape, elements=st.integers(low, high)))
    return Constant(whole.astype(element_type.numpy))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_quantization_of_any_numbers(data: st.DataObject) -> None:
    """Codes; the values that they stand for; and codes that are read twice."""
    element_type, (scale, axis) = data.draw(st.sampled_from(TYPES)), data.draw(scales())
    attributes = {"axis": axis, "output_dtype": element_type.onnx}
    zero = zero_point(data.draw, element_type, scale.shape)  # type: ignore[arg-type]
    parameters = [Constant(scale), *([] if zero is None else [zero])]
    finite = arrays.arrays(np.float32, SHAPE, elements=st.floats(-1e6, 1e6, width=32))
    value = np.where(np.arange(24).reshape(SHAPE) < 12, np.resize(VALUES, SHAPE), data.draw(finite))
    x = Parameter(f32, list(SHAPE), "x")
    codes = ops.create("QuantizeLinear", [x, *parameters], attributes)
    back = ops.create("DequantizeLinear", [codes, *parameters], {"axis": axis})
    if element_type.bits >= 8:
        assert_equal(ops.create("QuantizeLinear", [x, *parameters], attributes), x, value)
    assert_equal(back, x, value)


@pytest.mark.parametrize("element_type", [i8, u8, i16, u16], ids=str)
def test_codes_that_are_an_input(element_type: ElementType) -> None:
    x = Parameter(element_type, [3, 5], "x")
    limits = np.iinfo(element_type.numpy)
    value = np.linspace(limits.min, limits.max, 15).astype(element_type.numpy).reshape(3, 5)
    scale, zero = Constant(np.float32([0.1, 0.2, 0.3])), Constant(np.array([1, 0, 9], element_type.numpy))
    assert_equal(ops.DequantizeLinear(x, scale, zero, axis=0), x, value)


@pytest.mark.parametrize("real", [f32, f16], ids=str)
@pytest.mark.parametrize("block_size", [0, 2])
def test_a_constant_is_computed_when_it_is_read(block_size: int, real: ElementType) -> None:
    weights, x = Constant(np.arange(-12, 12, dtype=np.int8).reshape(4, 6)), Parameter(real, [2, 4], "x")
    scale = Constant(np.full((2, 6) if block_size else (4,), 0.3, real.numpy))
    made = ops.DequantizeLinear(weights, scale, axis=0, block_size=block_size, friendly_name="weights")
    model = decomposed(ops.MatMul(x, made), x)
    assert kinds(model) == {"Parameter", "Constant", "MatMul", "Result"}
    (constant,) = (node for node in model.ordered_nodes() if isinstance(node, Constant))
    assert (constant.friendly_name, constant.is_loaded) == ("weights", False)
    np.testing.assert_array_equal(constant.data, weights.data.astype(real.numpy) * real.numpy.type(0.3))


@pytest.mark.parametrize(
    ("codes", "read", "stays"),
    [
        (np.int8, lambda x, w: ops.MatMul(x, w), True),
        (np.uint8, lambda x, w: ops.Gemm(x, w), True),
        (np.int16, lambda x, w: ops.MatMul(x, w), False),
        (np.int8, lambda x, w: ops.Add(x, w), False),
        (np.int8, lambda x, w: ops.MatMul(w, x), False),
    ],
    ids=["MatMul", "Gemm", "16 bits", "no product", "left of MatMul"],
)
def test_only_weights_of_8_bits_of_products_stay_codes(codes: type, read: Any, stays: bool) -> None:
    """The former are multiplied as integers; nothing computes the others from codes, for each inference."""
    x = Parameter(f32, [4, 4], "x")
    weights = ops.DequantizeLinear(Constant(np.arange(16, dtype=codes).reshape(4, 4)), Constant(np.float32(0.5)))
    model = Model([Result(read(x, weights))], [x])
    manager = Manager()
    manager.register_pass(DequantizedConstantFolding, enabled=True)
    assert manager.run_passes(model) is not stays
    assert ("DequantizeLinear" in kinds(model)) is stays


def test_a_scalar_stays_a_scalar() -> None:
    x = Parameter(f32, [2], "x")
    model = decomposed(ops.Mul(x, ops.DequantizeLinear(Constant(np.uint8(7)), Constant(np.float32(0.5)))), x)
    (constant,) = (node for node in model.ordered_nodes() if isinstance(node, Constant))
    np.testing.assert_array_equal(constant.data, np.float32(3.5), strict=True)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-40, np.inf, -np.inf, np.nan])
def test_scales_that_make_no_sense(scale: float) -> None:
    """The result follows the specification's formula, even where it makes no sense."""
    x, parameters = Parameter(f32, [len(VALUES)], "x"), [Constant(np.float32(scale)), Constant(np.uint8(7))]
    codes = ops.QuantizeLinear(x, *parameters)
    with np.errstate(all="ignore"):
        assert_equal(codes, x, VALUES)
        assert_equal(ops.DequantizeLinear(ops.QuantizeLinear(x, *parameters), *parameters), x, VALUES)


def test_one_scale_that_is_computed() -> None:
    x, scale = Parameter(f32, [3], "x"), Parameter(f32, [], "scale")
    zero = Parameter(u8, [], "zero")
    model = decomposed(ops.QuantizeLinear(x, scale, zero), x, scale, zero)
    assert "QuantizeLinear" not in kinds(model)
    value = np.array([-1, 0.7, 1000], np.float32)
    (found,) = evaluate_model(model, [value, np.float32(0.5), np.uint8(3)])
    assert (found.dtype, found.tolist()) == (np.uint8, [1, 4, 255])


def test_a_pair_of_different_parameters_keeps_the_codes() -> None:
    x = Parameter(f32, [len(VALUES)], "x")
    codes = ops.QuantizeLinear(x, Constant(np.float32(0.5)), Constant(np.int8(3)))
    assert_equal(ops.DequantizeLinear(codes, Constant(np.float32(0.25)), Constant(np.int8(3))), x, VALUES)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.QuantizeLinear(x, Parameter(f32, [None]), axis=0),
        lambda x: ops.QuantizeLinear(x, Constant(np.float32(1)), precision=f16.onnx),
        lambda x: ops.QuantizeLinear(ops.Cast(x, to=f16.onnx), Constant(np.float16(1))),
        lambda x: ops.DequantizeLinear(ops.Cast(x, to=i32.onnx), Constant(np.float16(1))),
    ],
)
def test_what_is_not_arithmetic_in_f32_stays(make: Any) -> None:
    x = Parameter(f32, [3, 3], "x")
    node = make(x)
    others = [v.node for v in node.input_values if isinstance(v.node, Parameter) and v.node is not x]
    model, manager = Model([Result(node)], [x, *others]), Manager()
    manager.register_pass(QuantizationDecomposition, enabled=True)
    assert not manager.run_passes(model)
    assert f64 not in {output.element_type for each in model.ordered_nodes() for output in each.outputs}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("block_size", [0, 2, 3])
@pytest.mark.parametrize("is_computed", [False, True])
def test_scales_along_an_axis_and_of_blocks(axis: int, block_size: int, is_computed: bool) -> None:
    """Also computed ones, which no constant can be made of; the last block may be shorter."""
    rng = np.random.default_rng(1)
    shape = list(SHAPE)
    if block_size:
        shape[axis] = -(-shape[axis] // block_size)
    else:
        shape = [SHAPE[axis]]
    scale, zero = rng.uniform(0.01, 2, shape).astype(np.float32), rng.integers(0, 256, shape).astype(np.uint8)
    parameters = [Parameter(f32, shape, "scale"), Parameter(u8, shape, "zero")]
    given: list[Node] = list(parameters) if is_computed else [Constant(scale), Constant(zero)]
    attributes = {"axis": axis, "block_size": block_size}
    values = (rng.standard_normal(SHAPE) * 50).astype(np.float32)
    x = Parameter(f32, SHAPE, "x")
    codes = Parameter(u8, SHAPE, "x")
    for source, node, data in (
        (x, ops.QuantizeLinear(x, *given, **attributes), values),
        (codes, ops.DequantizeLinear(codes, *given, **attributes), rng.integers(0, 256, SHAPE).astype(np.uint8)),
    ):
        others = parameters if is_computed else []
        feed = [data, scale, zero] if is_computed else [data]
        (wanted,) = evaluate_model(Model([Result(node)], [source, *others]).clone(), feed)
        model = decomposed(node, source, *others)
        assert not kinds(model) & {"QuantizeLinear", "DequantizeLinear"}
        (got,) = evaluate_model(model, feed)
        np.testing.assert_array_equal(got, wanted, strict=True)
