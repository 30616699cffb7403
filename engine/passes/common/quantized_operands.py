"""The operands of a convolution or product between dequantizations, for `QuantizedFusion`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from engine.ir import Constant, Node, Output, f32, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.internal import Quantized
from engine.ops.matmul import MatMulSpec
from engine.ops.quantize import QuantizeSpec
from engine.ops.tensors import Array
from engine.passes.common.qdq_propagation import MOVERS, is_per_tensor
from engine.passes.fusion import constant_data, derived_constant, operation
from engine.passes.runtime_info import FUSED_NAMES, RuntimeAttribute
from engine.startup import dataclass

WHY_REAL: Final = "engine.why_real"
"""The rt_info key of a product of quantized values that is computed in f32: why, as `RealReason`."""
_BYTES: Final = (u8, i8)
_MAX_SUM: Final = 2**31 - 1
_MAX_SCALE: Final = 2.0**40
_MIN_SCALE: Final = 2.0**-40
_TINY: Final = float(np.finfo(np.float32).tiny)  # scales of weights whose channel is almost zero


@dataclass(frozen=True, slots=True)
class RealReason(RuntimeAttribute):
    """Why a product of quantized values is computed in f32."""

    text: str

    def merge(self, others: Any) -> RealReason:
        """Return this reason: the first one is kept when nodes are fused."""
        return self


class StaysRealError(Exception):
    """The operands of a product do not fit the quantized operators; the message says why."""


def note_real(node: Node, why: str | None) -> None:
    """Record why a product stays in f32, for queries."""
    if FUSED_NAMES in node.annotations and WHY_REAL not in node.annotations and why:
        node.rt_info[WHY_REAL] = RealReason(why)


def dequantization_of(value: Output) -> Node | None:
    """The DequantizeLinear that `value` is the result of, past operators that only move elements."""
    while operation(value, *MOVERS, "MaxPool"):
        value = value.node.input_value(0)
    return operation(value, "DequantizeLinear")


def operands_of(spec: ConvSpec | MatMulSpec) -> Quantized:
    """The operands of the quantized operator that computes a Conv or MatMul. Raises `StaysRealError`."""
    x_value, weights_value = spec.node.input_value(0), spec.node.input_value(1)
    source = operation(weights_value, "DequantizeLinear")
    if dequantization_of(x_value) is None:
        raise StaysRealError("x is not quantized")
    is_transposed = isinstance(spec, ConvSpec) and spec.transposed
    if dequantization_of(weights_value) is None:
        raise StaysRealError("the weights are not quantized to u8 or i8")
    x = operation(x_value, "DequantizeLinear")
    if x is None or source is None:
        raise StaysRealError("values are moved between their dequantization and the product")
    if constant_data(source.input_value(0)) is None:
        raise StaysRealError("both factors are computed; integer products take constant weights")
    require_byte_quantization(x, "x")
    is_matrix = isinstance(spec, MatMulSpec)
    axis = int(is_transposed or (isinstance(spec, MatMulSpec) and not spec.trans_b))
    weights = _weights(source, axis, 2 if is_matrix else None)
    if isinstance(spec, ConvSpec) and is_transposed and spec.group > 1 and (weights[1].shape.rank != 0 or weights[2]):
        raise StaysRealError("groups of a transposed convolution share scales or zero points; expected one scale")
    bias = spec.input(2)
    if bias is not None and not is_constant(bias):
        raise StaysRealError("the bias is computed; expected a constant")
    if bias is not None and has_nan(bias):
        raise StaysRealError("the bias contains NaN")
    codes = x.input_value(0)
    found = Quantized(codes, x.input_value(1), zero_point_of(x, codes), weights[0], weights[1], bias)
    return replace(found, weights_zero_point=weights[2])


def with_residual(operands: Quantized, residual: Output) -> Quantized:
    """The operands with a residual, as codes if it is dequantized."""
    source = operation(residual, "DequantizeLinear")
    if source is None or not is_byte_quantization(source):
        return replace(operands, residual=residual)
    codes = source.input_value(0)
    zero_point = zero_point_of(source, codes)
    return replace(operands, residual=codes, residual_scale=source.input_value(1), residual_zero_point=zero_point)


def is_byte_quantization(node: Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear is between f32 and 8-bit integers, by one constant scale."""
    try:
        require_byte_quantization(node, "a value")
    except StaysRealError:
        return False
    return True


def require_byte_quantization(node: Node, name: str) -> None:
    """Raise `StaysRealError` unless `is_byte_quantization(node)`; `name` is the quantized value's."""
    spec = QuantizeSpec.of(node)
    integers = node.output(0) if node.op_type == "QuantizeLinear" else node.input_value(0)
    real = node.input_value(0) if node.op_type == "QuantizeLinear" else node.output(0)
    if integers.element_type not in _BYTES:
        raise StaysRealError(f"{name} is quantized to {integers.element_type}; expected u8 or i8")
    if real.element_type is not f32 or spec.precision not in (None, f32):
        raise StaysRealError(f"{name} is dequantized to {real.element_type}; expected f32")
    if not is_per_tensor(node):
        raise StaysRealError(f"{name} has several scales; expected one")
    scale = constant_data(node.input_value(1))
    if scale is None or (node.has_input(2) and constant_data(node.input_value(2)) is None):
        raise StaysRealError(f"the scale or zero point of {name} is computed; expected constants")
    if scale.dtype != np.float32 or not _are_within(scale, _MIN_SCALE):
        raise StaysRealError(f"the scale of {name} is {scale.item():.4g}; expected one from 2**-40 to 2**40")


def zero_point_of(node: Node, codes: Output) -> Output:
    """The zero point of a QuantizeLinear or DequantizeLinear, 0 if it is omitted."""
    if node.has_input(2):
        return node.input_value(2)
    return Constant(np.zeros((), codes.element_type.numpy)).output(0)


def is_constant(value: Output) -> bool:
    """Whether a value is a constant, or the dequantization of one."""
    if isinstance(value.node, Constant):
        return True
    source = operation(value, "DequantizeLinear")
    return source is not None and all(
        given is None or isinstance(given.node, Constant) for given in source.input_values
    )


def has_nan(value: Output) -> bool:
    """Whether a constant or dequantized constant contains NaN, which kernels of integers do not quantize alike."""
    source = value.node if isinstance(value.node, Constant) else value.node.input_value(1).node
    assert isinstance(source, Constant)
    return bool(np.isnan(source.data).any())


def _are_within(scales: Array, least: float) -> bool:
    """Whether scales are from `least` to `_MAX_SCALE`, so that no product or quotient of them overflows."""
    return bool(((scales >= least) & (scales <= _MAX_SCALE)).all())


def _weights(node: Node, axis: int, rank: int | None) -> tuple[Output, Output, Output | None]:
    spec, value, scale = QuantizeSpec.of(node), node.output(0), node.input_value(1)
    if value.element_type is not f32:
        raise StaysRealError(f"the weights are dequantized to {value.element_type}; expected f32")
    if rank is not None and value.shape.rank != rank:
        raise StaysRealError(f"the weights have {value.shape.rank} dimensions; expected a matrix")
    if spec.block_size:
        raise StaysRealError(f"weights have a scale for each block of {spec.block_size}; expected one for each channel")
    if (not scale.shape.is_static or scale.shape.size() != 1) and spec.axis != axis:
        raise StaysRealError(f"weights have scales along axis {spec.axis}; expected axis {axis}, of the results")
    return weights_of(node.input_value(0), node.input_value(2) if node.has_input(2) else None, scale, axis)


def weights_of(
    weights: Output, zero_point: Output | None, scale: Output, axis: int
) -> tuple[Output, Output, Output | None]:
    """Weights as i8, their scales, and their zero points unless all are 0. Raises `StaysRealError`.

    Scales and zero points are one number each, or one for each index of `axis`.
    """
    data, scales = constant_data(weights), constant_data(scale)
    points = np.zeros((), np.int8) if zero_point is None else constant_data(zero_point)
    if data is None or scales is None or points is None:
        raise StaysRealError("the weights, their scales or zero points are computed; expected constants")
    if weights.element_type not in _BYTES:
        raise StaysRealError(f"the weights are of {weights.element_type}; expected u8 or i8")
    if scales.dtype != np.float32 or not _are_within(scales, _TINY):
        raise StaysRealError(f"a scale of the weights is {_extreme(scales):.4g}; expected normal numbers up to 2**40")
    count = data.shape[axis]
    if any(item.size != 1 and item.shape != (count,) for item in (scales, points)):
        raise StaysRealError(f"weights have scales of shape {list(scales.shape)}; expected one, or {count}")
    center = 128 if weights.element_type is u8 else 0
    moved = points.astype(np.int16) - center
    terms, most = data.size // max(1, count), _MAX_SUM // (255 * (255 if moved.any() else 128))
    if terms > most:
        raise StaysRealError(f"a sum has {terms:,} products: more than {most:,}, which 32 bits hold")
    if scales.ndim == 1 and scales.size == 1:
        assert isinstance(scale.node, Constant)
        scale = derived_constant([scale.node], (), lambda array: array.reshape(())).output(0)
    if center:
        assert isinstance(weights.node, Constant)
        weights = _signed(weights.node).output(0)
    if not moved.any():
        return weights, scale, None
    points = moved.astype(np.int8).reshape(-1)
    if scales.size != 1:
        points = np.ascontiguousarray(np.broadcast_to(points, (count,)))
    elif points.size != 1:
        scale = Constant(np.full(count, scales.item(), np.float32)).output(0)
    return weights, scale, Constant(points if points.size != 1 or scales.size != 1 else points.reshape(())).output(0)


def _extreme(scales: Array) -> float:
    bad = scales.reshape(-1)[~((scales >= _TINY) & (scales <= _MAX_SCALE)).reshape(-1)]
    return float(bad[0]) if bad.size else float("nan")


def _signed(weights: Constant) -> Constant:
    """Weights of u8 as i8: minus 128."""
    return derived_constant([weights], weights.shape, lambda data: (data.astype(np.int16) - 128).astype(np.int8), i8)
