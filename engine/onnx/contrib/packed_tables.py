"""`GatherBlockQuantized`: look-ups in a table whose elements are packed, with a scale for each block."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, ElementType, Output, PartialShape, TensorType, i32, i64, u8
from engine.ir.element_type import f4e2m1, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, i4, u4
from engine.onnx.contrib.call import ContribCall, contrib
from engine.onnx.contrib.packed_elements import (
    REALS,
    UNSIGNED,
    axis_of,
    bits_of,
    block_size_of,
    constant_of,
    is_constant,
    unpacked,
)
from engine.onnx.upgrades.emit import constant_value, emit, i64s

_NARROW_REALS: Final = frozenset({f4e2m1, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz})


@contrib("GatherBlockQuantized", "data indices scales zero_points?", "bits block_size gather_axis quantize_axis")
def _gather_block_quantized(call: ContribCall) -> list[Output] | None:
    """Slices of the dequantized data, and zeros for indices that are out of range; None if the data is computed."""
    if any(call.has_input(index) and not is_constant(call.input(index)) for index in (0, 2, 3)):
        return None
    table = _table(call)
    shape = table.shape.get_shape()
    axis = axis_of(call, "gather_axis", 0, len(shape))
    indices, length = call.typed(1, {i32, i64}), shape[axis]
    if not length:
        call.invalid(f"{call.described(0)} has shape {list(shape)}; expected at least one slice along axis {axis}")
    numbers = constant_value(indices)
    if numbers is not None and ((numbers >= -length) & (numbers < length)).all():
        return [emit("Gather", table, indices, axis=axis)]
    low, high, zero = (Constant(np.array(n), indices.element_type).output(0) for n in (-length, length, 0))
    is_valid = emit("And", emit("GreaterOrEqual", indices, low), emit("Less", indices, high))
    found = emit("Gather", table, emit("Where", is_valid, indices, zero), axis=axis)
    after = list(range(axis + 1 - len(shape), 0))
    mask = emit("Unsqueeze", is_valid, i64s(after)) if after else is_valid
    return [emit("Where", mask, found, Constant(0.0, table.element_type).output(0))]


def _table(call: ContribCall) -> Output:
    """The dequantized data of a GatherBlockQuantized."""
    data = call.typed(0, {u8, i4, u4, *_NARROW_REALS})
    scales = constant_of(call.typed(2, REALS))
    element_type, shape = data.element_type, list(data.shape.get_shape())
    if not shape:
        call.invalid(f"{call.described(0)} is a scalar; expected one dimension or more")
    axis = axis_of(call, "quantize_axis", 1, len(shape))
    zero_point = None if not call.has_input(3) else constant_of(call.typed(3, {element_type}))
    codes, middle = constant_of(data), 0
    if element_type is u8:
        bits = bits_of(call)
        element_type, middle = UNSIGNED[bits], 1 << (bits - 1)
        if call.integer("gather_axis", 0) or (bits < 8 and axis != len(shape) - 1):
            call.invalid(
                f"attributes `gather_axis` and `quantize_axis` are {call.integer('gather_axis', 0)} and "
                f"{call.integer('quantize_axis', 1)}; expected 0 and the last axis for data of u8"
            )
        codes = _elements(codes, bits)
        shape = list(codes.shape)
        if zero_point is not None and not zero_point.shape:
            call.invalid(f"{call.described(3)} is a scalar; expected one for each block of the data")
        zero_point = None if zero_point is None else _elements(zero_point, bits)
    block = _table_block(call, element_type, shape[axis])
    wanted = [-(-n // block) if index == axis else n for index, n in enumerate(shape)]
    scales = _fitted(call, 2, scales, wanted, element_type)
    if zero_point is not None:
        if element_type.is_real:
            call.invalid(f"{call.described(3)} is given; expected none, because the data is {element_type}")
        zero_point = Constant(zero_point.data[..., : wanted[-1]]) if middle else zero_point
        zero_point = _fitted(call, 3, zero_point, wanted, element_type)
    elif middle:
        zero_point = Constant(np.full(wanted, middle, np.uint8).astype(element_type.numpy))
    parameters = [each.output(0) for each in (scales, zero_point) if each is not None]
    return emit("DequantizeLinear", codes.output(0), *parameters, axis=axis, block_size=block)


def _table_block(call: ContribCall, element_type: ElementType, length: int) -> int:
    if element_type.is_real and not call.integer("block_size", 128):
        return max(1, length)
    return block_size_of(call, 128)


def _elements(packed: Constant, bits: int) -> Constant:
    """The elements of `bits` bits in bytes along the last axis, the first in the low bits."""
    element_type, shape = UNSIGNED[bits], packed.shape
    value_type = TensorType(element_type, PartialShape([*shape[:-1], shape[-1] * (8 // bits)]))
    return Constant.derived([packed], value_type, lambda data: unpacked(data, bits).astype(element_type.numpy))


def _fitted(
    call: ContribCall, index: int, parameter: Constant, wanted: list[int], element_type: ElementType
) -> Constant:
    """A parameter of the shape `wanted`; for data of narrow floats, lengths of 1 broadcast. Raises `ModelError`."""
    shape = list(parameter.shape)
    if shape == wanted:
        return parameter
    broadcasts = len(shape) == len(wanted) and all(n in (1, w) for n, w in zip(shape, wanted, strict=True))
    if not element_type.is_real or not broadcasts:
        found = call.input(index).shape
        call.invalid(f"{call.described(index)} has shape {found}; expected {wanted}, one for each block of the data")
    return Constant(np.ascontiguousarray(np.broadcast_to(parameter.data, wanted)))
