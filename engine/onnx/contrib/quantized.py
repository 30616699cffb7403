"""Operators between quantized values: each dequantizes its inputs, computes in f32, and quantizes the result.

Their results are within one quantum of onnxruntime's kernels, which round in other places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir import Constant, Output, f16, f32, i32
from engine.ir.element_type import i4, i8, i16, u4, u8, u16
from engine.onnx.contrib.call import BYTES, ContribCall, contrib
from engine.onnx.opsets import resolve_version
from engine.onnx.upgrades import OldCall, upgrade_call
from engine.onnx.upgrades.emit import cast, constant_value, emit, rank_of

_BINARY = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
_UNARY = "X X_scale X_zero_point? Y_scale Y_zero_point?"
_CODES = frozenset({i4, u4, i8, u8, i16, u16, i32})


@contrib("QuantizeLinear", "x y_scale y_zero_point?", "axis")
def _quantize_linear(call: ContribCall) -> list[Output]:
    x, scale = call.typed(0, {f16, f32}), call.typed(1, {f16, f32})
    zero_point = call.typed(2, _CODES) if call.has_input(2) else None
    return [emit("QuantizeLinear", x, scale, zero_point, axis=_axis_of_scales(call))]


@contrib("DequantizeLinear", "x x_scale x_zero_point?", "axis")
def _dequantize_linear(call: ContribCall) -> list[Output]:
    x, scale, zero_point = call.typed(0, _CODES), call.typed(1, {f16, f32}), call.zero_point(2, of=0)
    return [emit("DequantizeLinear", x, scale, zero_point, axis=_axis_of_scales(call))]


def _axis_of_scales(call: ContribCall) -> int:
    """The attribute; without it, there is one scale."""
    if "axis" in call.attributes:
        return call.integer("axis")
    call.single(1)
    call.single(2)
    return 1


@contrib("QLinearAdd", _BINARY)
def _add(call: ContribCall) -> list[Output]:
    return [call.quantized(emit("Add", call.dequantized(0), call.dequantized(3)), 6)]


@contrib("QLinearMul", _BINARY)
def _mul(call: ContribCall) -> list[Output]:
    return [call.quantized(emit("Mul", call.dequantized(0), call.dequantized(3)), 6)]


@contrib("QLinearSigmoid", _UNARY)
def _sigmoid(call: ContribCall) -> list[Output]:
    return [call.quantized(emit("Sigmoid", call.dequantized(0)), 3)]


@contrib("QLinearLeakyRelu", _UNARY, "alpha")
def _leaky_relu(call: ContribCall) -> list[Output]:
    return [call.quantized(emit("LeakyRelu", call.dequantized(0), alpha=call.number("alpha", 0.01)), 3)]


@contrib("QLinearSoftmax", "X X_scale x_zero_point? y_scale y_zero_point", "axis opset")
def _softmax(call: ContribCall) -> list[Output]:
    """The Softmax of opset `opset`: before 13, it flattens its input."""
    version = resolve_version("Softmax", "", call.integer("opset"))
    attributes = {"axis": call.integer("axis", -1)}
    found = upgrade_call(OldCall("Softmax", "", version, (call.dequantized(0),), attributes, 1, call.name))
    if isinstance(found, OldCall):
        return [call.quantized(emit(found.op_type, *found.inputs, **found.attributes), 3)]
    return [call.quantized(found[0], 3)]


@contrib("QLinearWhere", "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point")
def _where(call: ContribCall) -> list[Output]:
    return [call.quantized(emit("Where", call.input(0), call.dequantized(1), call.dequantized(4)), 7, like=1)]


@contrib("QLinearConcat", "Y_scale Y_zero_point ...", "axis")
def _concat(call: ContribCall) -> list[Output]:
    """The other inputs are tensors, each with its scale and zero point."""
    count = len(call.inputs)
    if count < 5 or count % 3 != 2:
        call.invalid(f"it has {count} inputs; expected 2 and, for each tensor, 3: the tensor, scale and zero point")
    values = [call.dequantized(index) for index in range(2, count, 3)]
    return [call.quantized(emit("Concat", *values, axis=call.integer("axis")), 0, like=2)]


@contrib("QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", "channels_last")
def _global_average_pool(call: ContribCall) -> list[Output]:
    return [_pooled(call, "GlobalAveragePool", {})]


@contrib(
    "QLinearAveragePool",
    "X x_scale x_zero_point? y_scale y_zero_point?",
    "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
)
def _average_pool(call: ContribCall) -> list[Output]:
    return [_pooled(call, "AveragePool", {k: v for k, v in call.attributes.items() if k != "channels_last"})]


@contrib(
    "QLinearConv",
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
    "auto_pad channels_last dilations group kernel_shape pads strides",
)
def _conv(call: ContribCall) -> list[Output]:
    """The operator of ONNX, whose channels may be last."""
    attributes = {name: value for name, value in call.attributes.items() if name != "channels_last"}
    call.typed(0, BYTES)
    if not call.choice("channels_last", 0, (0, 1)):
        return [emit("QLinearConv", *call.inputs, **attributes)]
    rank = _rank_with_channels_last(call)
    first = emit("Transpose", call.input(0), perm=(0, rank - 1, *range(1, rank - 1)))
    return [emit("Transpose", emit("QLinearConv", first, *call.inputs[1:], **attributes), perm=(0, *range(2, rank), 1))]


def _rank_with_channels_last(call: ContribCall) -> int:
    """The rank of the first input. Raises `UnsupportedError` if it is unknown, and `ModelError` below 3."""
    rank = rank_of(call.input(0))
    if rank is None:
        call.unsupported("the rank of input 0 is unknown, and its channels are last", "state it in value_info")
    if rank < 3:
        call.invalid(f"{call.described(0)} has rank {rank}; expected 3 or more, as the channels are last")
    return rank


def _pooled(call: ContribCall, op_type: str, attributes: dict[str, Any]) -> Output:
    if not call.integer("channels_last", 0):
        return call.quantized(emit(op_type, call.dequantized(0), **attributes), 3)
    rank = _rank_with_channels_last(call)
    first = emit("Transpose", call.input(0), perm=(0, rank - 1, *range(1, rank - 1)))
    moved = ContribCall(
        call.op_type, call.domain, call.version, (first, *call.inputs[1:]), call.attributes, 1, call.name
    )
    codes = moved.quantized(emit(op_type, moved.dequantized(0), **attributes), 3)
    return emit("Transpose", codes, perm=(0, *range(2, rank), 1))


@contrib("QGemm", "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?", "alpha transA transB")
def _gemm(call: ContribCall) -> list[Output]:
    """`alpha * (A * B + C)`, where C is i32 with the scale a_scale * b_scale; in f32 if there is no y_scale."""
    transposed = call.integer("transB", 0)
    operands = [call.dequantized(0), call.dequantized(3, axis=0 if transposed else 1)]
    if call.has_input(6):
        operands.append(_sums(call.typed(6, {i32}), call.input(1), call.input(4)))
    alpha = call.number("alpha", 1.0)
    value = emit("Gemm", *operands, alpha=alpha, beta=alpha, transA=call.integer("transA", 0), transB=transposed)
    if call.has_input(7) != call.has_input(8):
        call.invalid("y_scale and y_zero_point must both be given, or both be omitted")
    return [call.quantized(value, 7, like=None) if call.has_input(7) else value]


def _sums(c: Output, a_scale: Output, b_scale: Output) -> Output:
    """`c` with the scale `a_scale * b_scale`: constants are computed in f64, and rounded once."""
    product = emit("Mul", cast(c, f32), emit("Mul", a_scale, b_scale))  # raises if the shapes do not fit
    numbers, a, b = (constant_value(value) for value in (c, a_scale, b_scale))
    if numbers is None or a is None or b is None:
        return product
    return Constant((numbers * (a.astype(np.float64) * b.astype(np.float64))).astype(np.float32)).output(0)
