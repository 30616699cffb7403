"""Quantization: to and from integers, integer matrix products, and the requantization that they share."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper

from engine.ir import ElementType, u8
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("QuantizeLinear")
def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: int,
    precision: int,
    saturate: int,
) -> Array:
    """x / scale + zero_point, rounded half to even and saturated (ONNX QuantizeLinear-25)."""
    if zero_point is not None:
        target = ElementType.from_numpy(zero_point.dtype)
    else:
        target = ElementType.from_onnx(output_dtype) if output_dtype else u8
    factor = _spread(scale, x.shape, axis, block_size)
    if precision:
        wide = ElementType.from_onnx(precision).numpy
        quotient = x.astype(wide) / factor.astype(wide)
    else:
        quotient = x / factor
    if not target.is_integral:
        return _to_narrow_float(quotient, target, bool(saturate))
    # In f64 every sum is exact, and what lies far outside still saturates to the right side.
    rounded: Array = np.nan_to_num(np.rint(quotient.astype(np.float64)), nan=0.0)
    if zero_point is not None:
        rounded = rounded + _spread(zero_point, x.shape, axis, block_size).astype(np.float64)
    low, high = _limits(target)
    codes: Array = np.clip(rounded, low, high).astype(np.int64)
    return codes.astype(target.numpy)


def _to_narrow_float(x: Array, target: ElementType, saturate: bool) -> Array:
    if not saturate or target.bits < 8:
        return x.astype(target.numpy)  # the six- and four-bit floats have no infinity and saturate by themselves
    return onnx.numpy_helper.saturate_cast(x, target.numpy)


def _limits(target: ElementType) -> tuple[int, int]:
    if target.is_signed:
        return -(1 << (target.bits - 1)), (1 << (target.bits - 1)) - 1
    return 0, (1 << target.bits) - 1


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point laid out against a tensor of `shape`: one for all, one a slice, or one a block."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    if not block_size:
        return parameter.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    repeated = np.repeat(parameter, block_size, axis=axis)
    return np.take(repeated, range(shape[axis]), axis=axis) if repeated.shape[axis] != shape[axis] else repeated


@evaluates("MatMulInteger")
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """The product of 8-bit matrices as i32 (ONNX MatMulInteger-10); a zero point a row of a, a column of b."""
    return (_centered(a, a_zero_point, -1) @ _centered(b, b_zero_point, -2)).astype(np.int32)


@evaluates("QLinearMatMul")
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """The product of quantized matrices, quantized (ONNX QLinearMatMul-21)."""
    product = _centered(a, a_zero_point, -1) @ _centered(b, b_zero_point, -2)
    scale = _along(a_scale, a.ndim, -1) * _along(b_scale, b.ndim, -2) / y_scale
    return requantize(product, scale, y_zero_point)


def requantize(exact: Array, scale: Array, zero_point: Array) -> Array:
    """`exact * scale + zero_point`, rounded half to even and saturated to the zero point's type."""
    limits = np.iinfo(zero_point.dtype)
    # The product is rounded to f32 first, as kernels do that scale integers by one f32 factor.
    rounded = np.rint(exact.astype(np.float32) * scale.astype(np.float32)) + zero_point.astype(np.float32)
    result: Array = np.clip(rounded, limits.min, limits.max).astype(zero_point.dtype)
    return result


def _centered(x: Array, zero_point: Array | None, summed: int) -> Array:
    """Quantized values less their zero point. Sums of products are exact in f64 below 2^53, and BLAS is fast."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - _along(zero_point, x.ndim, summed).astype(np.float64)


def _along(parameter: Array, rank: int, summed: int) -> Array:
    """A scale or zero point laid out against a matrix: constant along the axis that is summed over."""
    if parameter.ndim == 1 and parameter.size > 1 and rank > 1:
        return np.expand_dims(parameter, summed)
    return parameter
