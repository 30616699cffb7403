"""Quantization, dequantization, and requantization of sums of products."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir import ElementType, Node, u8
from engine.ops.axes import Axes, AxisMapping, axis_names, declare_axes, maps_axes, rank_of_value
from engine.ops.precision import rounded_to_odd
from engine.ops.registry import evaluates
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_MIN_SCALE: Final = 2.0**-126
_MAX_SCALE: Final = 2.0**40


declare("QuantizeLinear", "DequantizeLinear", quantizes=True, vectorized=True)
declare("DynamicQuantizeLinear", quantizes=True)
declare_axes("DynamicQuantizeLinear", axes="... -> ...'")


@specifies("DequantizeLinear", "QuantizeLinear")
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeSpec(OperatorSpec):
    """Quantization or dequantization with one scale per tensor, per index of an axis, or per block of an axis.

    Attributes:
        axis: the axis of the scales, counted from the front; ignored for a single scale, even if out of range.
        block_size: the number of elements along the axis that share a scale; 0 if scales are not blocked.
        output_dtype: the type of the result, if the model states it.
        precision: for QuantizeLinear, the type of quotients, if the model states it.
        saturate: for QuantizeLinear, whether values out of the range of an 8-bit float become its largest number.
    """

    axis: int
    block_size: int
    output_dtype: ElementType | None
    precision: ElementType | None
    saturate: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["block_size"] < 0:
            refuse(node, "block_size", given["block_size"], "0 or more")
        rank, axis = rank_of(node, 0), given["axis"]
        if rank is not None and -rank <= axis < rank:
            given["axis"] = axis % rank
        elif rank is not None and given["block_size"]:
            refuse(node, "axis", axis, f"{-rank}..{rank - 1}, as the rank is {rank} and scales are blocked")
        for name in ("output_dtype", "precision"):
            given[name] = _element_type(node, name, given.get(name, 0))
        given["saturate"] = bool(given.get("saturate", 1))


def _element_type(node: Node, name: str, number: int) -> ElementType | None:
    try:
        return ElementType.from_onnx(number) if number else None
    except ModelError as e:
        refuse(node, name, number, "a value of TensorProto.DataType", e)


@evaluates_with_spec("QuantizeLinear")
def quantize_linear(spec: QuantizeSpec, x: Array, scale: Array, zero_point: Array | None = None) -> Array:
    """x / scale + zero_point, rounded half to even and saturated (ONNX QuantizeLinear-25)."""
    axis, block_size = spec.axis, spec.block_size
    target = spec.output_dtype or u8 if zero_point is None else ElementType.from_numpy(zero_point.dtype)
    factor = spread(scale, x.shape, axis, block_size)
    if spec.precision is not None:
        quotient = x.astype(spec.precision.numpy) / factor.astype(spec.precision.numpy)
    else:
        quotient = x / factor
    if not target.is_integral:
        return _to_narrow_float(quotient, target, spec.saturate)
    return _codes(quotient, None if zero_point is None else spread(zero_point, x.shape, axis, block_size), target)


@evaluates("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """Codes of u8, scale and zero point over the range of x and 0 (ONNX DynamicQuantizeLinear-11).

    The specification leaves these open: a tensor without elements is quantized as 0 is; a zero point that is NaN, since
    the scale is infinite, NaN or 0, is 255, and a code that is NaN is 0, as in onnxruntime.
    """
    with np.errstate(all="ignore"):
        low, high = np.min(x, initial=0), np.max(x, initial=0)
        scale = (np.float32(1) if low == high else high - low).astype(x.dtype) / x.dtype.type(255)
        start = -low / scale
        zero_point = np.rint(start) if start <= 255 else np.float32(255)
        codes = np.clip(np.nan_to_num(np.rint(x / scale) + zero_point, nan=0.0), 0, 255)
    return codes.astype(np.uint8), np.asarray(scale, x.dtype), np.asarray(zero_point, np.uint8)


def _to_narrow_float(x: Array, target: ElementType, saturate: bool) -> Array:
    if x.dtype.isbuiltin == 1:
        x = rounded_to_odd(x)
    if not saturate or target.bits < 8:
        return x.astype(target.numpy)  # the six- and four-bit floats have no infinity and saturate by themselves
    return onnx.numpy_helper.saturate_cast(x, target.numpy)


def _limits(target: ElementType) -> tuple[int, int]:
    if target.is_signed:
        return -(1 << (target.bits - 1)), (1 << (target.bits - 1)) - 1
    return 0, (1 << target.bits) - 1


def spread(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point (single, per slice, or per block) that broadcasts to a tensor of `shape`."""
    if parameter.size == 1 and not block_size:
        return parameter.reshape(())
    if not block_size:
        return parameter.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    repeated = np.repeat(parameter, block_size, axis=axis)
    return np.take(repeated, range(shape[axis]), axis=axis) if repeated.shape[axis] != shape[axis] else repeated


def are_usual(*scales: Array) -> bool:
    """Whether integer sums of products may be scaled afterwards: all scales are from 2**-126 to 2**40.

    With others (0, negative ones, NaN, infinity), QLinearConv and QLinearMatMul quantize the product of dequantized
    operands.
    """
    wide = [scale.astype(np.float64) for scale in scales]
    return all(bool(((each >= _MIN_SCALE) & (each <= _MAX_SCALE)).all()) for each in wide)


def scaled(codes: Array, scale: Array) -> Array:
    """Codes less their zero point as real numbers, in f32."""
    return codes.astype(np.float32) * scale.astype(np.float32)


def requantize(real: Array, scale: Array, zero_point: Array) -> Array:
    """`real * scale + zero_point`, rounded half to even and saturated to the zero point's type."""
    # The product is rounded to f32 first, as in kernels that scale integers by an f32 factor.
    return _codes(scaled(real, scale), zero_point, ElementType.from_numpy(zero_point.dtype))


def quantize(real: Array, scale: Array, zero_point: Array) -> Array:
    """`real / scale + zero_point`, computed in the same way: QuantizeLinear of f32."""
    return _codes(real / scale.astype(np.float32), zero_point, ElementType.from_numpy(zero_point.dtype))


def _codes(quotient: Array, zero_point: Array | None, target: ElementType) -> Array:
    # In f64 every sum is exact, and values far out of range saturate to the correct side. NaN has the code of 0.
    rounded: Array = np.nan_to_num(np.rint(quotient.astype(np.float64)), nan=0.0)
    if zero_point is not None:
        rounded = rounded + zero_point.astype(np.float64)
    codes: Array = np.clip(rounded, *_limits(target)).astype(np.int64)
    return codes.astype(target.numpy)


@maps_axes("QuantizeLinear", "DequantizeLinear")
def _axes(node: Node) -> Axes:
    """Scales per index of an axis have this axis."""
    spec, ranks = QuantizeSpec.of(node), [rank_of_value(node.input_value(index)) for index in range(2)]
    rank, scales = ranks
    if rank is None or scales is None or spec.block_size:
        return None
    names = axis_names(rank)
    is_single = scales == 0 or (scales == 1 and spec.axis not in range(rank))
    parameter = None if is_single else (names[spec.axis],)
    return AxisMapping((names, *(parameter,) * (node.num_inputs - 1)), (names,))
