"""How a model makes the next value of an input: which dimension grows or is written, and from which values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.ir import Node, Output, PartialShape
from engine.ops.gather import ScatterElementsSpec, ScatterNDSpec, TensorScatterSpec
from engine.ops.slice import ConcatSpec
from engine.ops.transpose import TransposeSpec
from engine.startup import dataclass

_TOKENS: Final = 2
"""The dimension of tokens in the keys and values of Attention: [B, H, tokens, D]."""


@dataclass(frozen=True, slots=True)
class Appended:
    """A value whose next version is the former one with more behind it.

    Attributes:
        axis: the dimension that grows.
        is_placed: whether room is appended, and then written into at positions that the model computes, as by
            GroupQueryAttention.
        shapes: the shapes of the appended and written values, with the lengths of the value except along `axis`.
    """

    axis: int
    is_placed: bool
    shapes: tuple[PartialShape, ...]


def appended(past: Output, present: Output) -> Appended | None:
    """How `present` extends `past` along one dimension; None if it does not."""
    steps = list(_steps(past, present))
    if not steps or steps[-1] is None:
        return None
    found = [step for step in steps if step is not None]
    axes = {axis for axis, _, _ in found if axis is not None}
    if len(axes) != 1:
        return None
    shapes = tuple(shape for _, _, shapes in found for shape in shapes if shape.rank == past.shape.rank)
    return Appended(axes.pop(), any(is_placed for _, is_placed, _ in found), shapes)


_Step = tuple[int | None, bool, list[PartialShape]]
"""Along which dimension a node appends, whether it writes, and the shapes of the values that it appends or writes."""


def _steps(past: Output, present: Output) -> Iterator[_Step | None]:
    """The step of each node from `present` back to `past`; None at the end if one is not such a step."""
    value = present
    while value != past:
        node = value.node
        source = 0
        if node.domain:
            yield None
            return
        if node.op_type == "Concat":
            others = [node.input_value(index).shape for index in range(1, node.num_inputs)]
            yield ConcatSpec.of(node).axis if others else None, False, others
        elif node.op_type == "Attention" and value.index in (1, 2) and node.has_input(3 + value.index):
            source = 3 + value.index
            yield _TOKENS, False, [value.shape]  # it has the lengths of the new keys or values
        elif node.op_type == "TensorScatter":
            yield None, True, [TensorScatterSpec.of(node).update.shape]
        elif node.op_type != "Identity":
            yield None
            return
        value = node.input_value(source)


def is_window(past: Output, present: Output) -> bool:
    """Whether `present` has the last tokens of each sequence, taken from `past` and new ones, at computed positions.

    So does GroupQueryAttention with `sliding_window_cache`; padding has no effect on such a value.
    """
    value = present
    for op_type in ("Gather", "Reshape", "Concat"):
        while value.node.op_type == "Identity" and not value.node.domain:
            value = value.node.input_value(0)
        if value.node.op_type != op_type or value.node.domain or len(past.shape) != 4:
            return False
        if op_type == "Concat" and ConcatSpec.of(value.node).axis != _TOKENS:
            return False
        value = value.node.input_value(0)
    return value == past


def written_axis(past: Output, present: Output) -> int | None:
    """The dimension along which `present` is `past` with positions that were written, None if it is not."""
    rank = len(past.shape)
    found: int | None = None
    axes = list(range(rank))  # the value's axes, as axes of `present`
    value = present
    while value != past:
        node = value.node
        if node.domain or value.index or value.shape.rank != past.shape.rank:
            return None
        if node.op_type == "Transpose":
            order = TransposeSpec.of(node).order(rank)
            axes = [axes[order.index(axis)] for axis in range(rank)]
        elif node.op_type != "Identity":
            axis = _axis_of_write(node)
            if axis is None or found not in (None, axes[axis]):
                return None
            found = axes[axis]
        value = node.input_value(0)
    return found if axes == list(range(rank)) else None


def _axis_of_write(node: Node) -> int | None:
    """The dimension along which a node writes into its first input; None if it does not."""
    if node.op_type == "TensorScatter":
        spec = TensorScatterSpec.of(node)
        return spec.axis if spec.mode == "linear" else None
    if node.op_type == "ScatterElements":
        elements = ScatterElementsSpec.of(node)
        return elements.axis if elements.reduction == "none" else None
    if node.op_type == "ScatterND":
        slices = ScatterNDSpec.of(node)
        shape = slices.indices.shape
        is_of_first = shape.rank.is_static and len(shape) > 0 and shape[-1].is_static and shape[-1].min == 1
        return 0 if is_of_first and slices.reduction == "none" else None
    return None
