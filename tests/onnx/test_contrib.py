"""Operators of onnxruntime's domain, as its quantizer writes them: on each device, the answers of onnxruntime.

If one fails, models that onnxruntime's tools quantized cannot be read, or give other answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from engine import Core
from engine.errors import EngineError, ModelError
from engine.onnx import read_model
from engine.onnx.contrib import DOMAIN, OPERATORS
from engine.plugin_api import SupportLevel

Array = NDArray[Any]
DEVICES = ("TEMPLATE", "CPU")
TYPES = (np.uint8, np.int8)


class Inputs:
    """Random inputs of one node: tensors are inputs of the model, scales and zero points its initializers."""

    def __init__(self, dtype: Any, seed: int) -> None:
        self.dtype, self.random = dtype, np.random.default_rng(seed)
        self.arrays: list[Array | None] = []
        self.constants: set[int] = set()

    def add(self, value: Any, *, is_constant: bool = False) -> None:
        if is_constant:
            self.constants.add(len(self.arrays))
        self.arrays.append(None if value is None else np.asarray(value))

    def parameters(self, scale: Any, dtype: Any = None, *, zero: bool = True) -> None:
        """A scale, and a zero point of the same shape unless `zero` is false."""
        scale = np.asarray(scale, np.float32)
        self.add(scale, is_constant=True)
        point = self.codes(*scale.shape, dtype=dtype) // 2 if zero else None
        self.add(point, is_constant=True)

    def codes(self, *shape: int, dtype: Any = None) -> Array:
        limits = np.iinfo(dtype or self.dtype)
        return self.random.integers(limits.min, limits.max + 1, shape).astype(dtype or self.dtype)

    def weights(self, *shape: int) -> None:
        """Constant codes that activations of u8 are multiplied with: of i8, in -64..63.

        On CPUs without VNNI, onnxruntime adds two products of u8 and i8 in 16 bits, which saturate beyond.
        """
        codes = self.codes(*shape)
        self.add(codes // 2 if self.dtype is np.int8 else codes, is_constant=True)

    def tensor(self, shape: Sequence[int], scale: Any, dtype: Any = None, **options: Any) -> None:
        """A tensor of codes with its scale and zero point."""
        self.add(self.codes(*shape, dtype=dtype))
        self.parameters(scale, dtype, **options)


Make = Callable[[Inputs], dict[str, Any]]
"""Adds the inputs of a node and returns its attributes."""
CASES: dict[str, tuple[str, Make]] = {}
ROUNDED = {"DynamicQuantizeLSTM"}
"""Operators of f32 that onnxruntime computes in 8 bits."""


def case(name: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[name] = name.split("/")[0], make
        return make

    return register


def binary(x: Inputs, *, zero: bool = True, other: Sequence[int] = (2, 3, 4)) -> dict[str, Any]:
    x.tensor((2, 3, 4), 0.02)
    x.tensor(other, 0.03)
    x.parameters(0.06, zero=zero)
    return {}


for operator in ("QLinearAdd", "QLinearMul"):
    CASES[operator] = operator, binary
    CASES[f"{operator}/broadcast"] = operator, lambda x: binary(x, other=(3, 1))
    CASES[f"{operator}/symmetric"] = operator, lambda x: binary(x, zero=False)


def unary(x: Inputs, scale: float, **attributes: Any) -> dict[str, Any]:
    x.tensor((2, 3, 6, 6), 0.05)
    x.parameters(scale)
    return attributes


CASES["QLinearSigmoid"] = "QLinearSigmoid", lambda x: unary(x, 1 / 128)
CASES["QLinearLeakyRelu"] = "QLinearLeakyRelu", lambda x: unary(x, 0.06)
CASES["QLinearLeakyRelu/alpha"] = "QLinearLeakyRelu", lambda x: unary(x, 0.06, alpha=0.3)
CASES["QLinearGlobalAveragePool"] = "QLinearGlobalAveragePool", lambda x: unary(x, 0.02, channels_last=0)
CASES["QLinearGlobalAveragePool/channels-last"] = (
    "QLinearGlobalAveragePool",
    lambda x: unary(x, 0.02, channels_last=1),
)
for last in (0, 1):
    CASES[f"QLinearAveragePool/channels_last={last}"] = (
        "QLinearAveragePool",
        lambda x, last=last: unary(x, 0.04, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], channels_last=last),
    )  # fmt: skip
CASES["QLinearAveragePool/padding-counts"] = (
    "QLinearAveragePool",
    lambda x: unary(x, 0.04, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
)
CASES["QLinearAveragePool/same"] = (
    "QLinearAveragePool",
    lambda x: unary(x, 0.04, kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
)


def conv(x: Inputs, *, bias: bool = False, **attributes: Any) -> dict[str, Any]:
    x.tensor((1, 6, 6, 4) if attributes.get("channels_last") else (1, 4, 6, 6), 0.03)
    x.tensor((8, 4, 3, 3), 0.02)
    x.constants.add(3)
    x.parameters(0.2)
    if bias:
        x.add(x.random.integers(-9000, 9000, 8).astype(np.int32), is_constant=True)
    return {"pads": [1, 1, 1, 1], **attributes}


CASES["QLinearConv"] = "QLinearConv", conv
CASES["QLinearConv/bias"] = "QLinearConv", lambda x: conv(x, bias=True, strides=[2, 2])
CASES["QLinearConv/channels-last"] = "QLinearConv", lambda x: conv(x, bias=True, channels_last=1)


def softmax(x: Inputs, **attributes: Any) -> dict[str, Any]:
    x.tensor((2, 3, 4, 5), 0.01)
    x.add(np.float32(1 / 256), is_constant=True)
    x.add(np.iinfo(x.dtype).min * np.ones((), x.dtype), is_constant=True)
    return attributes


CASES["QLinearSoftmax"] = "QLinearSoftmax", lambda x: softmax(x, opset=13)
CASES["QLinearSoftmax/axis"] = "QLinearSoftmax", lambda x: softmax(x, opset=17, axis=1)
CASES["QLinearSoftmax/flattens"] = "QLinearSoftmax", lambda x: softmax(x, opset=11, axis=2)


@case("QLinearConcat")
def _concat(x: Inputs) -> dict[str, Any]:
    x.parameters(0.07)
    x.tensor((2, 3, 4), 0.05)
    x.tensor((2, 1, 4), 0.07)
    x.tensor((2, 2, 4), 0.02)
    return {"axis": -2}


@case("QLinearWhere")
def _where(x: Inputs) -> dict[str, Any]:
    x.add(x.random.random((3, 4)) < 0.5)
    x.tensor((2, 3, 4), 0.02)
    x.tensor((4,), 0.05)
    x.parameters(0.04)
    return {}


def gemm(x: Inputs, *, scale: Any = 0.03, c: Any = None, quantized: bool = True, **attributes: Any) -> dict[str, Any]:
    x.tensor((4, 3) if attributes.get("transA") else (3, 4), 0.02)
    x.tensor((5, 4) if attributes.get("transB") else (4, 5), scale)
    x.add(c, is_constant=True)
    if quantized:
        x.parameters(0.05)
    return attributes


BIAS = np.array([-9000, 20, 4000, 0, -1], np.int32)
CASES["QGemm"] = "QGemm", lambda x: gemm(x, c=BIAS, transB=1)
CASES["QGemm/alpha"] = "QGemm", lambda x: gemm(x, c=BIAS, transA=1, alpha=0.5)
CASES["QGemm/no-bias"] = "QGemm", gemm
CASES["QGemm/per-column"] = "QGemm", lambda x: gemm(x, c=BIAS, scale=np.linspace(0.01, 0.04, 5))
CASES["QGemm/per-column-transposed"] = (
    "QGemm",
    lambda x: gemm(x, c=BIAS[None], scale=np.linspace(0.01, 0.04, 5), transB=1),
)
CASES["QGemm/f32"] = "QGemm", lambda x: gemm(x, c=BIAS, quantized=False)


def dynamic(x: Inputs, scale: Any = 0.03, *, zero: bool = True, bias: bool = True) -> dict[str, Any]:
    x.add(x.random.normal(size=(2, 3, 4)).astype(np.float32))
    x.weights(4, 5)
    x.parameters(scale, zero=zero)
    if bias:
        x.add(x.random.normal(size=5).astype(np.float32), is_constant=True)
    return {}


CASES["DynamicQuantizeMatMul"] = "DynamicQuantizeMatMul", dynamic
CASES["DynamicQuantizeMatMul/per-column"] = (
    "DynamicQuantizeMatMul",
    lambda x: dynamic(x, np.linspace(0.01, 0.04, 5), bias=False),
)
CASES["DynamicQuantizeMatMul/symmetric"] = "DynamicQuantizeMatMul", lambda x: dynamic(x, zero=False)


@case("MatMulIntegerToFloat")
def _to_float(x: Inputs, scale: Any = 0.03) -> dict[str, Any]:
    x.add(x.codes(2, 3, 4))
    x.add(x.codes(4, 5))
    x.add(np.float32(0.02), is_constant=True)
    x.add(np.asarray(scale, np.float32), is_constant=True)
    x.add(x.codes(1), is_constant=True)
    x.add(x.codes(*np.shape(scale)), is_constant=True)
    x.add(x.random.normal(size=5).astype(np.float32))
    return {}


CASES["MatMulIntegerToFloat/per-column"] = "MatMulIntegerToFloat", lambda x: _to_float(x, np.linspace(0.01, 0.04, 5))


def attention(x: Inputs, weight_scale: Any = 0.01, mask: Any = None, **attributes: Any) -> dict[str, Any]:
    x.add(x.codes(2, 4, 6, dtype=np.uint8))
    x.weights(6, 24)
    x.add(x.random.normal(size=24).astype(np.float32), is_constant=True)
    x.add(np.float32(0.01), is_constant=True)
    x.add(np.asarray(weight_scale, np.float32), is_constant=True)
    x.add(mask if mask is None else np.asarray(mask, np.int32))
    x.add(x.codes(dtype=np.uint8), is_constant=True)
    x.add(x.codes(*np.shape(weight_scale)), is_constant=True)
    return {"num_heads": 2, **attributes}


CASES["QAttention"] = "QAttention", attention
CASES["QAttention/causal"] = "QAttention", lambda x: attention(x, np.linspace(0.01, 0.02, 24), unidirectional=1)
CASES["QAttention/lengths"] = "QAttention", lambda x: attention(x, mask=[4, 2])
CASES["QAttention/mask"] = "QAttention", lambda x: attention(x, mask=[[1, 1, 0, 1], [0, 1, 1, 0]])
CASES["QAttention/scale"] = "QAttention", lambda x: attention(x, scale=0.2)


def packed_product(x: Inputs) -> dict[str, Any]:
    """The case that `test_packed_weights.py` varies."""
    x.add(x.random.normal(size=(2, 3, 40)).astype(np.float32))
    x.add(x.codes(5, 3, 8, dtype=np.uint8), is_constant=True)
    x.add(x.random.uniform(0.01, 0.1, (5, 3)).astype(np.float32), is_constant=True)
    x.add(x.codes(5, 2, dtype=np.uint8), is_constant=True)
    x.add(None)
    x.add(x.random.normal(size=5).astype(np.float32), is_constant=True)
    return {"K": 40, "N": 5, "bits": 4, "block_size": 16}


def packed_table(x: Inputs) -> dict[str, Any]:
    x.add(x.codes(7, 24, dtype=np.uint8), is_constant=True)
    x.add(x.random.integers(-8, 9, (2, 3)))
    x.add(x.random.uniform(0.01, 0.1, (7, 3)).astype(np.float32), is_constant=True)
    x.add(x.codes(7, 2, dtype=np.uint8), is_constant=True)
    return {"bits": 4, "block_size": 16}


CASES["MatMulNBits"] = "MatMulNBits", packed_product
CASES["GatherBlockQuantized"] = "GatherBlockQuantized", packed_table


def recurrent(x: Inputs, direction: str = "forward", *, per_channel: bool = False, **attributes: Any) -> dict[str, Any]:
    """Of 5 steps, 2 sequences and 3 numbers. Weights of i8 have zero point 0."""
    count = 2 if direction == "bidirectional" else 1
    x.add(x.random.normal(size=(5, 2, 3)).astype(np.float32))
    x.weights(count, 3, 16)
    x.weights(count, 4, 16)
    x.add(x.random.normal(size=(count, 32)).astype(np.float32) / 4, is_constant=True)
    for _ in range(4):
        x.add(None)
    shape = (count, 16) if per_channel else (count,)
    for _ in range(2):
        x.add(x.random.uniform(0.002, 0.008, shape).astype(np.float32), is_constant=True)
        x.add(np.full(shape, 128 if x.dtype is np.uint8 else 0, x.dtype), is_constant=True)
    return {"hidden_size": 4, "direction": direction, **attributes}


CASES["DynamicQuantizeLSTM"] = "DynamicQuantizeLSTM", recurrent
CASES["DynamicQuantizeLSTM/per-channel"] = "DynamicQuantizeLSTM", lambda x: recurrent(x, per_channel=True, clip=3.0)
for name in ("reverse", "bidirectional"):
    CASES[f"DynamicQuantizeLSTM/{name}"] = "DynamicQuantizeLSTM", lambda x, name=name: recurrent(x, name)


@case("QuantizeLinear")
def _quantize(x: Inputs) -> dict[str, Any]:
    x.add((50 * x.random.normal(size=(3, 4))).astype(np.float32))
    x.parameters(0.4)
    return {}


@case("DequantizeLinear")
def _dequantize(x: Inputs) -> dict[str, Any]:
    x.tensor((3, 4), [0.1, 0.2, 0.3])
    return {"axis": 0}


@case("DequantizeLinear/16-bit")
def _dequantize_16(x: Inputs) -> dict[str, Any]:
    x.tensor((3, 4), 0.1, np.int16)
    return {}


def proto_of(op_type: str, x: Inputs, attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one node whose value `i` is called `x<i>`."""
    given = {index: array for index, array in enumerate(x.arrays) if array is not None}
    names = [f"x{i}" if i in given else "" for i in range(max(given) + 1)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], "node", domain=DOMAIN, **attributes)],
        "contrib",
        [
            helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for i, a in given.items()
            if i not in x.constants
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(given[i], f"x{i}") for i in sorted(x.constants & given.keys())],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def onnxruntime_answer(model: onnx.ModelProto, inputs: dict[str, Any]) -> Array:
    """The answer without optimizations, which would fuse operators."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


@pytest.mark.parametrize("dtype", TYPES, ids=["u8", "i8"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_onnxruntime(name: str, dtype: Any) -> None:
    op_type, make = CASES[name]
    for seed in range(3):
        x = Inputs(dtype, seed)
        model = proto_of(op_type, x, make(x))
        feed = {f"x{i}": a for i, a in enumerate(x.arrays) if a is not None and i not in x.constants}
        expected = onnxruntime_answer(model, feed)
        for device in DEVICES:
            (got,) = Core().compile_model(model, device)(feed).values()
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            if op_type in ROUNDED:
                assert np.abs(got - expected).max() <= 0.02 * np.abs(expected).max(), device
            elif got.dtype == np.float32:
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
            else:
                assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1, device


def test_every_operator_has_a_case() -> None:
    families = ("integer_products", "packed_products", "packed_tables", "quantized", "recurrent")
    known = {name for name, each in OPERATORS.items() if each.function.__module__.split(".")[-1] in families}
    # `test_transformer_operators.py` has the cases of the others.
    assert {op_type for op_type, _ in CASES.values()} == known | {"QAttention"}


# -- what is refused, and what stays ----------------------------------------------------------------------


def changed(name: str, change: Callable[[Inputs, dict[str, Any]], object], outputs: int = 1) -> onnx.ModelProto:
    """A case, changed."""
    x, (op_type, make) = Inputs(np.uint8, 0), CASES[name]
    attributes = make(x)
    change(x, attributes)
    model = proto_of(op_type, x, attributes)
    model.graph.node[0].output.extend(f"y{i}" for i in range(1, outputs))
    return model


def at(index: int, value: Any) -> Callable[[Inputs, dict[str, Any]], object]:
    return lambda x, _: x.arrays.__setitem__(index, value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("QLinearAdd", at(2, np.int8(0)), "input 2 (A_zero_point, `x2`) is i8; expected u8, the type of input 0"),
        ("QLinearAdd", at(7, np.int8(0)), "input 7 (C_zero_point, `x7`) is i8; expected u8"),
        ("QLinearMul", at(1, None), "input 1 (A_scale) is missing"),
        ("QLinearMul", at(3, np.zeros((5, 5), np.uint8)), "do not broadcast"),
        ("QLinearMul", at(3, np.zeros((3, 1), np.int32)), "input 3 (B, `x3`) is i32; expected i8 or u8"),
        ("QLinearMul", lambda x, _: x.parameters(1), "it has 10 inputs; expected at most 8"),
        ("QLinearSigmoid", at(1, np.ones(2, np.float32)), "input 1 (X_scale, `x1`) has shape [2]; expected one number"),
        ("QLinearSigmoid", at(1, np.float64(1)), "input 1 (X_scale, `x1`) is f64; expected f32"),
        ("QLinearLeakyRelu", lambda _, a: a.update(beta=1.0), "no attribute `beta`; it has alpha"),
        ("QLinearLeakyRelu", lambda _, a: a.update(alpha="x"), "attribute `alpha` is 'x'; expected a number"),
        ("QLinearSoftmax", lambda _, a: a.pop("opset"), "attribute `opset` is missing"),
        ("QLinearConcat", lambda x, _: x.arrays.pop(), "it has 10 inputs; expected 2 and, for each tensor, 3"),
        ("QGemm", at(4, np.ones(3, np.float32)), "has shape []; expected [3], the shape of input 4 (b_scale, `x4`)"),
        ("QGemm", at(4, np.ones((1, 5), np.float32)), "has shape [1,5]; expected one number, or one per channel"),
        ("QGemm", at(8, None), "y_scale and y_zero_point must both be given"),
        ("QGemm", at(6, np.zeros(5, np.float32)), "input 6 (C, `x6`) is f32; expected i32"),
        ("MatMulIntegerToFloat", at(2, np.ones(3, np.float32)), "input 2 (a_scale, `x2`) has shape [3]"),
        ("DequantizeLinear/16-bit", at(1, np.ones(3, np.float32)), "input 1 (x_scale, `x1`) has shape [3]"),
        ("GatherBlockQuantized", at(3, np.uint8(1)), "input 3 (zero_points, `x3`) is a scalar; expected one for each"),
    ],
)  # fmt: skip
def test_what_an_operator_does_not_accept(name: str, change: Any, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(changed(name, change))
    assert f"{CASES[name][0]} `node`" in str(found.value)
    assert words in str(found.value)


ARRAYS = st.builds(
    lambda shape, dtype: np.ones(shape, dtype),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from([np.uint8, np.int8, np.int32, np.int64, np.float32, np.float16, np.bool_]),
)
VALUES = st.one_of(st.integers(-9, 30), st.floats(-2, 2), st.text(max_size=3), st.lists(st.integers(-3, 9), min_size=1))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_other_call_is_read_or_refused(name: str, data: st.DataObject) -> None:
    def change(x: Inputs, attributes: dict[str, Any]) -> None:
        for index in data.draw(st.sets(st.integers(0, len(x.arrays) - 1), max_size=2)):
            x.arrays[index] = data.draw(st.one_of(st.none(), ARRAYS))
        for key in data.draw(st.sets(st.sampled_from(OPERATORS[CASES[name][0]].attributes or ("none",)), max_size=2)):
            attributes[key] = data.draw(VALUES)
        x.add(None if any(a is not None for a in x.arrays) else np.ones(1, np.float32))

    with contextlib.suppress(EngineError):
        read_model(changed(name, change))


def test_an_operator_has_one_output() -> None:
    with pytest.raises(ModelError, match="it has 2 outputs; expected at most 1"):
        read_model(changed("QLinearAdd", lambda *_: None, outputs=2))


def test_others_of_the_domain_stay_nodes_of_it() -> None:
    x = Inputs(np.uint8, 0)
    x.add(np.zeros(3, np.float32))
    model = read_model(proto_of("Unheard", x, {}))
    (node,) = [node for node in model.ordered_nodes() if node.domain]
    assert (node.op_type, node.domain) == ("Unheard", DOMAIN)


def with_past(x: Inputs, past: int = 3) -> None:
    x.add(x.random.normal(size=(2, 2, 2, past, 4)).astype(np.float32))


@pytest.mark.parametrize("past", [None, 0, 3])
@pytest.mark.parametrize("mask", [None, "lengths", "keys"])
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}], ids=["all", "causal"])
def test_the_keys_and_values_of_an_attention_are_those_of_onnxruntime(
    attributes: dict[str, Any], mask: str | None, past: int | None
) -> None:
    """A decoder hands them on from one step to the next."""
    x, keys = Inputs(np.int8, 0), 4 + (past or 0)
    masks = {"lengths": [keys, 2], "keys": np.arange(2 * keys).reshape(2, keys) % 3 > 0}
    own = attention(x, mask=masks.get(mask or ""), **attributes)
    if past is not None:
        with_past(x, past)
    model = proto_of("QAttention", x, own)
    model.graph.node[0].output.append("present")
    model.graph.output.add(name="present")
    feed = {f"x{i}": a for i, a in enumerate(x.arrays) if a is not None and i not in x.constants}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feed)
    for device in DEVICES:
        got = Core().compile_model(model, device)(feed)
        for name, want in zip(("y", "present"), expected, strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} on {device}")


def test_queries_and_keys_of_one_value_need_no_mask_of_positions() -> None:
    """Their number has no name: an addition of a slice lost it, as in Whisper by onnxruntime-genai's builder.

    A mask computed from lengths would need a plan for each length.
    """
    tensor, heads = helper.make_tensor_value_info, {"num_heads": 2, "unidirectional": 1}
    names = ["q", "k", "v", "", "", "", "past_k", "past_v"]
    nodes = [
        helper.make_node("Slice", ["table", "start", "end"], ["positions"]),
        helper.make_node("Add", ["x", "positions"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["q_0"]),
        helper.make_node("Add", ["b", "q_0"], ["q"]),
        helper.make_node("MatMul", ["h", "w"], ["k"]),
        helper.make_node("MatMul", ["h", "w"], ["v"]),
        helper.make_node("MultiHeadAttention", names, ["y", "present_k", "present_v"], domain=DOMAIN, **heads),
    ]
    random = np.random.default_rng(0)
    constants = {"table": random.normal(size=(9, 8)), "w": random.normal(size=(8, 8)) / 8, "b": random.normal(size=8)}
    past = [tensor(f"past_{kind}", TensorProto.FLOAT, ["batch", 2, "past", 4]) for kind in "kv"]
    ends = [tensor(name, TensorProto.INT64, [1]) for name in ("start", "end")]
    graph = helper.make_graph(
        nodes, "decoder", [tensor("x", TensorProto.FLOAT, ["batch", "new", 8]), *ends, *past],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "present_k", "present_v")],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = read_model(proto.SerializeToString())
    assert not [node for node in model.ordered_nodes() if node.op_type in ("Equal", "Range")]
    feed = {
        "x": random.normal(size=(2, 3, 8)).astype(np.float32), "start": np.array([4]), "end": np.array([7]),
        **{each.name: random.normal(size=(2, 2, 4, 4)).astype(np.float32) for each in past},
    }  # fmt: skip
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for device in DEVICES:
        got = Core().compile_model(proto.SerializeToString(), device)(feed)
        for name, want in zip(("y", "present_k", "present_v"), session.run(None, feed), strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} on {device}")


@pytest.mark.parametrize("attribute", ["do_rotary", "past_present_share_buffer"])
def test_other_attentions_stay_nodes(attribute: str) -> None:
    model = read_model(changed("QAttention", lambda x, attributes: attributes.update({attribute: 1})))
    assert [node.op_type for node in model.ordered_nodes() if node.domain] == ["QAttention"]


def test_the_past_of_an_attention_has_five_dimensions() -> None:
    with pytest.raises(ModelError, match=r"input 8 \(past, `x8`\) has shape \[2,3\]; expected \[2, batch, heads"):
        read_model(changed("QAttention", lambda x, _: x.add(np.zeros((2, 3), np.float32))))


def test_names_and_metadata_are_those_of_the_node() -> None:
    proto = changed("QLinearAdd", lambda *_: None)
    proto.graph.node[0].metadata_props.add(key="affinity", value="CPU")
    made = [node for node in read_model(proto).ordered_nodes() if node.op_type in ("Add", "QuantizeLinear")]
    assert [node.friendly_name for node in made] == ["node/Add", "node"]
    assert {node.rt_info["affinity"] for node in made} == {"CPU"}


# -- whole networks ---------------------------------------------------------------------------------------


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Random images to calibrate with."""

    def __init__(self, count: int = 4) -> None:
        self.left = [image(seed) for seed in range(count)]

    def get_next(self) -> dict[str, Array] | None:
        return self.left.pop() if self.left else None


def image(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(size=(1, 3, 16, 16)).astype(np.float32)}


def network() -> onnx.ModelProto:
    """A convolutional network with a perceptron at its end, and each operator that the tool quantizes."""
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.3 * random.normal(size=shape)).astype(np.float32), name)

    steps: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Conv", "x w1 b1", "c1", {"pads": [1] * 4}),
        ("Relu", "c1", "r1", {}),
        ("Conv", "r1 w2 b2", "c2", {"pads": [1] * 4, "group": 2}),
        ("Sigmoid", "c2", "s", {}),
        ("Mul", "c2 s", "m", {}),
        ("Add", "m r1", "a", {}),
        ("LeakyRelu", "a", "l", {"alpha": 0.1}),
        ("Concat", "l r1", "cat", {"axis": 1}),
        ("MaxPool", "cat", "mp", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", "mp", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("GlobalAveragePool", "p", "g", {}),
        ("Flatten", "g", "f", {}),
        ("Gemm", "f w3 b3", "h", {"transB": 1}),
        ("Relu", "h", "hr", {}),
        ("MatMul", "hr w4", "z", {}),
        ("Softmax", "z", "y", {"axis": -1}),
    ]
    shapes = {
        "w1": (8, 3, 3, 3),
        "b1": (8,),
        "w2": (8, 4, 3, 3),
        "b2": (8,),
        "w3": (12, 16),
        "b3": (12,),
        "w4": (12, 9),
    }
    graph = helper.make_graph(
        [helper.make_node(kind, i.split(), o.split(), f"{kind}_{o}", **a) for kind, i, o, a in steps],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 9])],
        [weights(name, *shape) for name, shape in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("types", [("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8")], ids="-".join)
def test_a_network_quantized_in_qoperator_format(types: tuple[str, str], per_channel: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "quantized.onnx"
    onnx.save(network(), source)
    quantize_static(
        source, target, Samples(), quant_format=QuantFormat.QOperator, per_channel=per_channel,
        activation_type=QuantType[types[0]], weight_type=QuantType[types[1]],
    )  # fmt: skip
    model = onnx.load(target)
    written = {node.op_type for node in model.graph.node}
    assert written >= {"QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearConcat", "QLinearSoftmax"}
    expected = onnxruntime_answer(model, image(9))
    others = [device for device in ("OPENCL",) if device in Core().available_devices and types[0] != types[1]]
    for device in (*DEVICES, *others):
        (got,) = Core().compile_model(model, device)(image(9)).values()
        assert np.abs(got - expected).max() <= 2 / 256, device  # one quantum of the last layer, and what it changes
        levels = {support.level for support in Core().query_model(model, device).nodes.values()}
        assert levels == {SupportLevel.NATIVE}, device


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
def test_a_network_quantized_dynamically(per_channel: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "quantized.onnx"
    onnx.save(network(), source)
    quantize_dynamic(source, target, per_channel=per_channel, weight_type=QuantType.QUInt8)
    model = onnx.load(target)
    expected = onnxruntime_answer(model, image(9))
    for device in DEVICES:
        (got,) = Core().compile_model(model, device)(image(9)).values()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=device)


def test_its_operators_have_names_that_onnx_does_not_have() -> None:
    """For an operator of ONNX, the reader does not import these."""
    assert not [name for name, each in OPERATORS.items() if onnx.defs.has(name, each.domain)]
