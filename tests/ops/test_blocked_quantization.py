"""Blocked quantization of every type: the reference evaluator computes what the specification and onnxruntime say.

The evaluator is the judge of every device, so if one fails, all of them may be wrong.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine import Core, ops
from engine.errors import ModelError
from engine.ir import Constant, ElementType, Model, Node, Parameter
from engine.ir.element_type import bf16, f16, f32, i2, i4, i8, i16, u2, u4, u8, u16
from engine.onnx import model_to_proto, read_model
from engine.ops.evaluator import ModelEvaluator

Array = NDArray[Any]
TYPES = (i2, u2, i4, u4, i8, u8, i16, u16)
PEER = (i4, u4, i8, u8, i16, u16)
"""The values that onnxruntime dequantizes."""


def limits(element_type: ElementType) -> tuple[int, int]:
    low = -(1 << (element_type.bits - 1)) if element_type.is_signed else 0
    return low, low + (1 << element_type.bits) - 1


def spread(parameter: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    return np.take(np.repeat(parameter, block, axis=axis), range(shape[axis]), axis=axis)


class Blocks:
    """Codes, scales and zero points in blocks along an axis."""

    def __init__(
        self, shape: tuple[int, ...], axis: int, block: int, element_type: ElementType, scale: ElementType, seed: int
    ) -> None:
        random = np.random.default_rng(seed)
        self.shape, self.axis, self.element_type = shape, axis % len(shape), element_type
        self.block = block
        blocks = [-(-n // block) if index == self.axis else n for index, n in enumerate(shape)]
        low, high = limits(element_type)
        self.codes = random.integers(low, high + 1, shape).astype(element_type.numpy)
        self.zeros = random.integers(low, high + 1, blocks).astype(element_type.numpy)
        self.scales = random.uniform(-2, 2, blocks).astype(scale.numpy)

    def dequantize(self, x: Node, *, zero: bool) -> Node:
        parameters = [Constant(self.scales), *([Constant(self.zeros)] if zero else [])]
        return ops.create("DequantizeLinear", [x, *parameters], {"axis": self.axis, "block_size": self.block})

    def spread(self, parameter: Array) -> Array:
        return spread(parameter, self.shape, self.axis, self.block)


@st.composite
def blocks(draw: st.DrawFn, types: tuple[ElementType, ...] = TYPES, scales: tuple[ElementType, ...] = (f32,)) -> Blocks:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    block = draw(st.integers(1, shape[axis] + 2))
    return Blocks(
        shape, axis, block, draw(st.sampled_from(types)), draw(st.sampled_from(scales)), draw(st.integers(0, 99))
    )


def answer(node: Node, parameter: Parameter, x: Array) -> Array:
    return np.asarray(ModelEvaluator(Model([node], [parameter])).run([x])[0])


@settings(max_examples=200, deadline=None)
@given(blocks(), st.booleans())
def test_dequantization_is_the_formula(found: Blocks, zero: bool) -> None:
    x = Parameter(found.element_type, found.shape, "x")
    got = answer(found.dequantize(x, zero=zero), x, found.codes)
    centers = found.codes.astype(np.float32) - (found.spread(found.zeros).astype(np.float32) if zero else 0)
    np.testing.assert_array_equal(got, centers * found.spread(found.scales))


@settings(max_examples=80, deadline=None)
@given(blocks(PEER, (f32, f16)), st.booleans())
def test_dequantization_is_that_of_onnxruntime(found: Blocks, zero: bool) -> None:
    assume(found.scales.size > 1)  # onnxruntime refuses blocks with a single scale
    check_onnxruntime(Model([found.dequantize(Constant(found.codes), zero=zero)], []))


def check_onnxruntime(model: Model) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model_to_proto(model).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, {})
    np.testing.assert_array_equal(ModelEvaluator(model).run([])[0], expected)


@settings(max_examples=200, deadline=None)
@given(blocks(), st.sampled_from([f32, f16, bf16]), st.booleans())
def test_quantization_is_the_formula(found: Blocks, real: ElementType, zero: bool) -> None:
    scales = found.scales.astype(real.numpy)
    scales[np.abs(scales) < 0.01] = 1
    values = (found.codes.astype(np.float32) * 0.7).astype(real.numpy)
    x = Parameter(real, found.shape, "x")
    kind = {} if zero else {"output_dtype": found.element_type.onnx}
    parameters = [Constant(scales), *([Constant(found.zeros)] if zero else [])]
    node = ops.create("QuantizeLinear", [x, *parameters], {"axis": found.axis, "block_size": found.block, **kind})
    got = answer(node, x, values)
    with np.errstate(over="ignore"):
        quotient = (values / found.spread(scales)).astype(np.float64)
    exact = np.rint(quotient) + (found.spread(found.zeros).astype(np.float64) if zero else 0)
    assert got.dtype == found.element_type.numpy
    np.testing.assert_array_equal(got.astype(np.int64), np.clip(exact, *limits(found.element_type)).astype(np.int64))


@settings(max_examples=40, deadline=None)
@given(blocks((i8, u8, i16, u16)))
def test_quantization_is_that_of_onnxruntime(found: Blocks) -> None:
    assume(found.scales.size > 1)
    values = found.codes.astype(np.float32) * 0.7
    scales = np.abs(found.scales) + np.float32(0.1)
    node = ops.create(
        "QuantizeLinear",
        [Constant(values), Constant(scales), Constant(found.zeros)],
        {"axis": found.axis, "block_size": found.block},
    )
    check_onnxruntime(Model([node], []))


# -- what is refused, and what is computed as the specification says ------------------------------------------

CODES = np.arange(-8, 8).reshape(8, 2).astype(ml_dtypes.int4)
SCALES = np.full((2, 2), 0.5, np.float32)


def proto_of(arrays: list[Any], **attributes: int) -> onnx.ModelProto:
    names = [f"t{index}" for index in range(len(arrays))]
    node = helper.make_node("DequantizeLinear", names, ["y"], "node", **{"axis": 0, "block_size": 4} | attributes)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for array, name in zip(arrays, names, strict=True)]
    graph = helper.make_graph([node], "blocks", [], [onnx.ValueInfoProto(name="y")], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("arrays", "attributes", "words"),
    [
        ([CODES, SCALES], {"block_size": 3}, "the scale has shape [2,2]; expected one value, or [3,2]"),
        ([CODES, SCALES], {"block_size": 8}, "the scale has shape [2,2]; expected one value, or [1,2]"),
        ([CODES, SCALES], {"block_size": 100}, "expected one value, or [1,2]"),
        ([CODES, SCALES], {"block_size": -4}, "attribute block_size is -4; allowed: 0 or more"),
        ([CODES, SCALES], {"block_size": 0}, "the scale has shape [2,2]; expected one value, or [8]"),
        ([CODES, SCALES], {"axis": 2}, "attribute axis is 2; allowed: -2..1"),
        ([CODES, SCALES], {"axis": -3}, "attribute axis is -3; allowed: -2..1"),
        ([CODES, np.ones(2, np.float32)], {}, "the scale has shape [2]; expected one value, or [2,2]"),
        ([CODES, np.ones((2, 3), np.float32)], {}, "the scale has shape [2,3]; expected one value, or [2,2]"),
        ([CODES, SCALES, np.zeros((2, 2), np.int8)], {}, "is i8[2,2] and must have the element type of input 0"),
        ([CODES, SCALES, np.zeros((2, 2), ml_dtypes.uint4)], {}, "is u4[2,2] and must have the element type of input"),
        ([CODES, SCALES, np.zeros((2, 1), ml_dtypes.int4)], {}, "the zero point has shape [2,1], and the scale [2,2]"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(arrays: list[Any], attributes: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(proto_of(arrays, **attributes))
    assert "DequantizeLinear `node`" in str(found.value)
    assert words in str(found.value)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize("value", [0.0, -0.5, np.nan, np.inf, -np.inf, 1e-40, 3e38])
def test_any_scale_is_computed(value: float, device: str) -> None:
    scales = SCALES.copy()
    scales[1, 0] = value
    (got,) = Core().compile_model(proto_of([CODES, scales]), device)({}).values()
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(got, CODES.astype(np.float32) * spread(scales, (8, 2), 0, 4))


@pytest.mark.parametrize("block", [5, 6, 7])
def test_the_last_block_may_be_shorter(block: int) -> None:
    got = ModelEvaluator(read_model(proto_of([CODES, SCALES * np.float32([[1], [3]])], block_size=block))).run([])[0]
    np.testing.assert_array_equal(got, CODES.astype(np.float32) * np.where(np.arange(8) < block, 0.5, 1.5)[:, None])


# -- packed tensors ---------------------------------------------------------------------------------------


def packed(element_type: ElementType, codes: Array, *, raw: bool) -> onnx.TensorProto:
    proto = numpy_helper.from_array(codes.astype(element_type.numpy), "w")
    if not raw:
        proto.int32_data.extend(proto.raw_data)
        proto.ClearField("raw_data")
    return proto


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([i2, u2, i4, u4]), st.integers(0, 17), st.booleans(), st.integers(0, 99))
def test_packed_tensors_of_any_length_are_read_and_passed_on(
    element_type: ElementType, length: int, raw: bool, seed: int
) -> None:
    low, high = limits(element_type)
    codes = np.random.default_rng(seed).integers(low, high + 1, length)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"]), helper.make_node("Identity", ["x"], ["z"])],
        "packed",
        [helper.make_tensor_value_info("x", element_type.onnx, [length])],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")],
        [packed(element_type, codes, raw=raw)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    for device in ("TEMPLATE", "CPU"):
        answers = Core().compile_model(proto, device)({"x": codes.astype(element_type.numpy)})
        for answered in answers.values():
            assert answered.dtype == element_type.numpy
            np.testing.assert_array_equal(answered.astype(np.int64), codes)
