"""Operators that permute the elements of one input: Transpose, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence

from engine.lowering import Refusal
from engine.ops.transpose import DepthToSpaceSpec, TransposeSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, item_size, static_shape
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import (
    MAX_DIMS,
    Copy,
    Strided,
    channel_parts,
    check_movable,
    copy_all,
    copy_step,
    is_map,
    physical,
)
from engine_cpu.segment import SegmentBuilder


@lowers("Transpose", spec=TransposeSpec)
class TransposeLowering(OpLowering[TransposeSpec]):
    """One copy; none if only axes of length 1 move. Can read or write blocked maps."""

    def check(self, spec: TransposeSpec) -> Refusal | None:
        return check_movable(spec.input(0), max_dims=MAX_DIMS - 1)  # blocks of channels are one more

    def layouts(self, spec: TransposeSpec) -> Sequence[LayoutOption]:
        node = spec.node
        options = [LayoutOption.uniform(Layout.PLAIN, 1)]
        # A map without channels has no blocks to copy.
        is_empty = any(each.is_static and each.get_length() == 0 for each in node.input_value(0).shape)
        if is_map(node.input_value(0)) and not is_empty and not _is_alias(spec):
            options.append(LayoutOption((Layout.BLOCKED,), (Layout.PLAIN,)))
            options.append(LayoutOption((Layout.PLAIN,), (Layout.BLOCKED,)))
            if _order(spec)[:2] == (0, 1):
                options.append(LayoutOption.uniform(Layout.BLOCKED, 1))
        return tuple(options)

    def alias_of(self, spec: TransposeSpec) -> int | None:
        return 0 if _is_alias(spec) else None

    def lower(self, spec: TransposeSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        if _is_alias(spec):
            b.alias(y, x)
            return
        read, written = b.option(node).inputs[0], b.option(node).outputs[0]
        source, target = b.input(x, read), b.output(y, written)
        shape, order = b.shape(x), _order(spec)
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


@lowers("DepthToSpace", "SpaceToDepth", spec=DepthToSpaceSpec)
class DepthToSpaceLowering(OpLowering[DepthToSpaceSpec]):
    """Moves blocks of space to channels, or back."""

    def check(self, spec: DepthToSpaceSpec) -> Refusal | None:
        return check_movable(spec.input(0))

    def lower(self, spec: DepthToSpaceSpec, b: SegmentBuilder) -> None:
        blocks = spec.at(b.shape(spec.node.input_value(0)))
        copy_all(spec.node, b, Strided.row_major(blocks.split).permute(blocks.order))


def _order(spec: TransposeSpec) -> tuple[int, ...]:
    return spec.order(len(spec.node.input_value(0).shape))


def _is_alias(spec: TransposeSpec) -> bool:
    """Whether the axes longer than 1 keep their order."""
    shape = static_shape(spec.node.input_value(0))
    moved = [axis for axis in _order(spec) if shape[axis] != 1]
    return moved == sorted(moved)


def _blocks(elements: Strided, start: int, count: int) -> Strided:
    """Channels [start, start + count) of [N, C, ...] as [N, blocks, 16, ...], as in `channel_parts`."""
    inner = min(count, BLOCK)
    return elements.slice(1, start, count).split(1, count // inner if inner else 0, inner)
