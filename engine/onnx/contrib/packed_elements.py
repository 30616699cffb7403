"""Elements of 2, 4 or 8 bits in bytes, and the attributes that describe them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, ElementType, Node, Output, TensorType, f16, f32, u8
from engine.ir.element_type import bf16, u2, u4
from engine.onnx.contrib.call import ContribCall
from engine.ops.traits import Moves, traits_of
from engine.ops.transpose import TransposeSpec

Array = NDArray[Any]

REALS: Final = frozenset({f32, f16, bf16})
UNSIGNED: Final = {2: u2, 4: u4, 8: u8}
"""The unsigned type of elements by their bits."""
_MIN_BLOCK: Final = 16


def bits_of(call: ContribCall) -> int:
    """The attribute `bits`, by default 4. Raises `ModelError` unless it is 2, 4 or 8."""
    bits = call.integer("bits", 4)
    if bits not in UNSIGNED:
        call.invalid(f"attribute `bits` is {bits}; expected 2, 4 or 8")
    return bits


def block_size_of(call: ContribCall, default: int | None = None) -> int:
    """The attribute `block_size`; required without a default. Raises `ModelError`."""
    block = call.integer("block_size", default)
    if block < _MIN_BLOCK or block & (block - 1):
        call.invalid(f"attribute `block_size` is {block}; expected a power of 2 of at least {_MIN_BLOCK}")
    return block


def axis_of(call: ContribCall, name: str, default: int, rank: int) -> int:
    """The axis in attribute `name`, counted from the front. Raises `ModelError`."""
    axis = call.integer(name, default)
    if not -rank <= axis < rank:
        call.invalid(f"attribute `{name}` is {axis}; expected {-rank}..{rank - 1}, as the rank is {rank}")
    return axis % rank


def expect_shape(call: ContribCall, index: int, *allowed: tuple[int, ...]) -> None:
    """Raise `ModelError` unless input `index` has one of the shapes `allowed`."""
    shape = call.input(index).shape
    if not any(shape.accepts(each) for each in allowed):
        expected = " or ".join(str(list(each)) for each in allowed)
        call.invalid(f"{call.described(index)} has shape {shape}; expected {expected}")


def same_type(call: ContribCall) -> frozenset[ElementType]:
    """The type of the first input, if it is known."""
    found = call.input(0).element_type
    return frozenset({found}) if found in REALS else REALS


def is_constant(value: Output) -> bool:
    """Whether a value is a constant, or one that is only viewed in another shape or order.

    A table that an embedding shares with a product comes through a Reshape.
    """
    node = value.node
    while _is_view(node) and value.shape.is_static:
        if any(source is not None and not isinstance(source.node, Constant) for source in node.sources[1:]):
            return False
        value = node.input_value(0)
        node = value.node
    return isinstance(node, Constant)


def _is_view(node: Node) -> bool:
    """Whether the result has the elements of the first input in an order that `constant_of` reads."""
    return traits_of(node).moves is Moves.VIEW or (node.op_type == "Transpose" and not node.domain)


def constant_of(value: Output) -> Constant:
    """The constant that a value is known to be by `is_constant`; a view is made when it is read."""
    if isinstance(value.node, Constant):
        return value.node
    source, shape = constant_of(value.node.input_value(0)), value.shape.get_shape()
    order = TransposeSpec.of(value.node).order(len(shape)) if value.node.op_type == "Transpose" else None

    def view(data: Array) -> Array:
        return data.reshape(shape) if order is None else np.ascontiguousarray(data.transpose(order))

    return Constant.derived([source], TensorType(value.element_type, value.shape), view)


def unpacked(data: Array, bits: int) -> Array:
    """u8 as elements of `bits` bits along the last axis, the first in the low bits."""
    if bits == 8:
        return data
    count, mask = 8 // bits, np.uint8((1 << bits) - 1)
    elements = np.empty((*data.shape[:-1], data.shape[-1] * count), np.uint8)
    for index in range(count):
        elements[..., index::count] = (data >> np.uint8(index * bits)) & mask
    return elements
