"""Operators that put all elements of one input elsewhere: transposition, repetition, blocks of depth and space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.ir import Node
from engine.lowering import Refusal, check_constant, first_refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, item_size, static_shape
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, channel_parts, check_movable, copy_step, is_map, physical

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder


@lowers("Transpose")
class TransposeLowering(OpLowering[OperatorSpec]):
    """One copy; none where only axes of length one move. It can read blocked maps, or write them."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_movable(node, node.input_value(0))

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        options = [LayoutOption.uniform(Layout.PLAIN, 1)]
        if is_map(node.input_value(0)) and not _is_alias(node):
            options.append(LayoutOption((Layout.BLOCKED,), (Layout.PLAIN,)))
            options.append(LayoutOption((Layout.PLAIN,), (Layout.BLOCKED,)))
            if _order(node)[:2] == [0, 1]:
                options.append(LayoutOption.uniform(Layout.BLOCKED, 1))
        return tuple(options)

    def alias_of(self, spec: OperatorSpec) -> int | None:
        node = spec.node
        return 0 if _is_alias(node) else None

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        if _is_alias(node):
            b.alias(y, x)
            return
        read, written = b.option(node).inputs[0], b.option(node).outputs[0]
        source, target = b.input(x, read), b.output(y, written)
        shape, order = b.shape(x), _order(node)
        copies = []
        if read.is_blocked and written.is_blocked:
            whole = physical(shape, read).permute((*order, len(order)))
            copies.append(Copy(source, whole, target, physical(b.shape(y), written)))
        elif read.is_blocked:
            back = [order.index(axis) for axis in range(len(order))]
            places = Strided.row_major(b.shape(y)).permute(back)
            for start, count, elements in channel_parts(shape, read):
                copies.append(Copy(source, elements, target, _blocks(places, start, count)))
        else:
            elements = Strided.row_major(shape).permute(order)
            for start, count, places in channel_parts(b.shape(y), written) if written.is_blocked else ():
                copies.append(Copy(source, _blocks(elements, start, count), target, places))
            if not written.is_blocked:
                copies.append(Copy(source, elements, target, Strided.row_major(b.shape(y))))
        copy_step(b, node, item_size(x.element_type), copies)


@lowers("Expand")
class ExpandLowering(OpLowering[OperatorSpec]):
    """Repeats along axes of length one, and new ones."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_movable(node, node.input_value(0), node.output(0)), check_constant(node, 1))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        if b.shape(x) == b.shape(y):
            b.alias(y, x)
            return
        elements = Strided.row_major(b.shape(x)).broadcast(b.shape(y))
        _copy_all(node, b, elements)

    def alias_of(self, spec: OperatorSpec) -> int | None:
        node = spec.node
        return 0 if static_shape(node.input_value(0)) == static_shape(node.output(0)) else None


@lowers("Tile")
class TileLowering(OpLowering[OperatorSpec]):
    """Repeats whole axes."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_movable(node, node.input_value(0)), check_constant(node, 1))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(0))
        elements = Strided.row_major(shape)
        sizes: list[int] = []
        strides: list[int] = []
        for size, stride, wanted in zip(shape, elements.strides, b.shape(node.output(0)), strict=True):
            sizes += [wanted // size if size else 0, size]
            strides += [0, stride]
        _copy_all(node, b, Strided(tuple(sizes), tuple(strides)))


@lowers("DepthToSpace", "SpaceToDepth")
class DepthToSpaceLowering(OpLowering[OperatorSpec]):
    """Moves blocks of space to channels, or back."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_movable(node, node.input_value(0))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        size = int(attribute(node, "blocksize"))
        batch, channels, height, width = b.shape(node.input_value(0))
        order: tuple[int, ...]
        if node.op_type == "SpaceToDepth":
            sizes = (batch, channels, height // size, size, width // size, size)
            order = (0, 1, 3, 5, 2, 4) if attribute(node, "mode") == "CRD" else (0, 3, 5, 1, 2, 4)
        elif attribute(node, "mode") == "CRD":
            sizes, order = (batch, channels // size**2, size, size, height, width), (0, 1, 4, 2, 5, 3)
        else:
            sizes, order = (batch, size, size, channels // size**2, height, width), (0, 3, 4, 1, 5, 2)
        _copy_all(node, b, Strided.row_major(sizes).permute(order))


def _copy_all(node: Node, b: SegmentBuilder, elements: Strided) -> None:
    """Output 0 is these elements of input 0, in their order."""
    x, y = node.input_value(0), node.output(0)
    places = Strided.row_major(elements.shape)
    copy_step(b, node, item_size(x.element_type), [Copy(b.input(x), elements, b.output(y), places)])


def _order(node: Node) -> list[int]:
    order = attribute(node, "perm")
    rank = len(node.input_value(0).shape)
    return [axis % rank for axis in order] if order is not None else list(range(rank))[::-1]


def _is_alias(node: Node) -> bool:
    """Whether the axes that are longer than one keep their order."""
    shape = static_shape(node.input_value(0))
    moved = [axis for axis in _order(node) if shape[axis] != 1]
    return moved == sorted(moved)


def _blocks(elements: Strided, start: int, count: int) -> Strided:
    """Channels [start, start + count) of [N, C, ...] as [N, blocks, 16, ...], as `channel_parts` has them."""
    inner = min(count, BLOCK)
    return elements.slice(1, start, count).split(1, count // inner if inner else 0, inner)
