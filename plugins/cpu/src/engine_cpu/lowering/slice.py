"""Concat, Split, Slice and Tile: parts of tensors, without copies where the parts are contiguous."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir import Node, Output
from engine.lowering import Refusal, check_parts
from engine.ops.slice import AxisSlice, ConcatSpec, SliceSpec, SplitSpec, TileSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, item_size, layout_bytes, static_shape
from engine_cpu.lowering.channels import channel_offset, image_bytes, select_channels, starts_of, whole_blocks
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, given_inputs, lowers
from engine_cpu.lowering.strided import (
    Copy,
    Strided,
    append_step,
    check_movable,
    copy_all,
    copy_step,
    is_byte_map,
    is_map,
    physical,
)
from engine_cpu.segment import SegmentBuilder


@lowers("Concat", spec=ConcatSpec)
class ConcatLowering(OpLowering[ConcatSpec]):
    """Inputs are written in place if their part of the output is contiguous, and copied otherwise."""

    def check(self, spec: ConcatSpec) -> Refusal | None:
        return check_movable(*spec.node.input_values)

    def layouts(self, spec: ConcatSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        is_bytes = is_byte_map(node.output(0))
        if not is_map(node.output(0)) and not is_bytes:
            return (plain,)
        blocked = (plain, LayoutOption.uniform(Layout.BLOCKED, node.num_inputs))
        axis = spec.axis
        counts = [static_shape(value)[axis] for value in given_inputs(node)]
        if axis == 1 and whole_blocks(counts) < len(counts):  # the lane kernel supports only f32
            return (plain,) if is_bytes else blocked
        if is_bytes:
            return blocked
        return (*blocked, LayoutOption.uniform(Layout.BLOCKED_BF16, node.num_inputs))

    def placements(self, spec: ConcatSpec, option: LayoutOption) -> Sequence[int | None]:
        node = spec.node
        layout, axis = option.outputs[0], spec.axis
        shape, element_type = static_shape(node.output(0)), node.output(0).element_type
        values = given_inputs(node)
        if math.prod(shape[:axis]) != 1:
            return [None] * len(values)
        counts = [static_shape(value)[axis] for value in values]
        if not layout.is_blocked:
            size = item_size(node.output(0).element_type) * math.prod(shape[axis + 1 :])
            return [start * size for start in starts_of(counts)]
        if axis == 0:
            return [start * image_bytes(shape, layout, element_type) for start in starts_of(counts)]
        if axis > 1:
            return [None] * len(values)
        whole = whole_blocks(counts)
        return [
            channel_offset(shape, start, layout, element_type) if i < whole else None
            for i, start in enumerate(starts_of(counts))
        ]

    def lower(self, spec: ConcatSpec, b: SegmentBuilder) -> None:
        node = spec.node
        y = node.output(0)
        if (state := b.state(y)) is not None:
            if y == state.prolonged:
                b.append(state)  # a later node writes the elements that it appends
                return
            new = node.input_value(1)
            append_step(b, node, state, b.input(new), Strided.row_major(b.shape(new)))
            return
        layout, axis = b.option(node).outputs[0], spec.axis
        values, shape = given_inputs(node), b.shape(y)
        counts = [b.shape(value)[axis] for value in values]
        sources = [b.input(value, layout) for value in values]
        target = b.output(y, layout)
        starts, is_by_lane = starts_of(counts), layout.is_blocked and axis == 1
        whole = whole_blocks(counts) if is_by_lane else len(counts)
        if shape[0] != 1 and whole < len(counts):
            whole = 0  # the remaining part is not contiguous
        has_places = any(b.is_placed(node, index) for index in range(whole))
        copies = []
        for index in range(whole):
            if b.is_placed(node, index) or not counts[index]:
                continue
            elements = physical(b.shape(values[index]), layout)
            start = starts[index] // BLOCK if is_by_lane else starts[index]
            places = physical(shape, layout).slice(axis, start, elements.shape[axis])
            size = item_size(y.element_type, layout)
            if has_places:
                # The source may be a part of the output that is already written, so the output is accessed as its
                # parts.
                piece = b.part(target, places.offset * size, math.prod(elements.shape) * size)
                copies.append(Copy(sources[index], elements, piece, Strided.row_major(elements.shape)))
            else:
                copies.append(Copy(sources[index], elements, target, places))
        if copies:
            copy_step(b, node, item_size(y.element_type, layout), copies)
        if whole < len(counts):
            rest = [*shape[:1], sum(counts[whole:]), *shape[2:]]
            if whole:
                offset = channel_offset(shape, starts[whole])
                target = b.part(target, offset, layout_bytes(rest, y.element_type, layout))
            ranges = [(index, 0, 1, count) for index, count in enumerate(counts[whole:])]
            select_channels(b, node, sources[whole:], [b.shape(v) for v in values[whole:]], ranges, target)


@lowers("Split", spec=SplitSpec)
class SplitLowering(OpLowering[SplitSpec]):
    """Contiguous parts are views without a step."""

    values = (1,)

    def check(self, spec: SplitSpec) -> Refusal | None:
        return check_movable(spec.input(0)) or check_values(spec.node, self.values) or check_parts(spec)

    def layouts(self, spec: SplitSpec) -> Sequence[LayoutOption]:
        return _part_layouts(spec.node)

    def lower(self, spec: SplitSpec, b: SegmentBuilder) -> None:
        parts = spec.at(b.shape(spec.node.input_value(0)), *b.values(spec, 1))
        for value, part in zip(spec.node.outputs, parts, strict=True):
            _take(spec.node, b, value, [part])


@lowers("Slice", spec=SliceSpec)
class SliceLowering(OpLowering[SliceSpec]):
    """Slices with any steps; a negative step reads backwards."""

    values = (1, 2, 3, 4)

    def check(self, spec: SliceSpec) -> Refusal | None:
        return check_movable(spec.input(0)) or check_values(spec.node, self.values)

    def layouts(self, spec: SliceSpec) -> Sequence[LayoutOption]:
        return _part_layouts(spec.node)

    def lower(self, spec: SliceSpec, b: SegmentBuilder) -> None:
        starts, ends, axes, steps = b.values(spec, 1, 2, 3, 4)
        assert starts is not None
        assert ends is not None
        _take(spec.node, b, spec.output(), spec.at(b.shape(spec.node.input_value(0)), starts, ends, axes, steps))


@lowers("Tile", spec=TileSpec)
class TileLowering(OpLowering[TileSpec]):
    """Repeats a tensor along its axes, by strides of 0."""

    values = (1,)

    def check(self, spec: TileSpec) -> Refusal | None:
        return check_movable(spec.input(0)) or check_values(spec.node, self.values)

    def lower(self, spec: TileSpec, b: SegmentBuilder) -> None:
        shape = b.shape(spec.node.input_value(0))
        (repeats,) = b.values(spec, 1)
        assert repeats is not None
        sizes: list[int] = []
        strides: list[int] = []
        for size, stride, count in zip(shape, Strided.row_major(shape).strides, spec.at(shape, repeats), strict=True):
            sizes += [count, size]
            strides += [0, stride]
        copy_all(spec.node, b, Strided(tuple(sizes), tuple(strides)))


def _part_layouts(node: Node) -> Sequence[LayoutOption]:
    """Input 0 and the outputs in one layout, other inputs in PLAIN."""
    plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs, node.num_outputs)
    if not is_map(node.input_value(0)):
        return (plain,)
    inputs = (Layout.BLOCKED, *(Layout.PLAIN for _ in range(node.num_inputs - 1)))
    return (plain, LayoutOption(inputs, (Layout.BLOCKED,) * node.num_outputs))


def _take(node: Node, b: SegmentBuilder, value: Output, cuts: Sequence[AxisSlice]) -> None:
    """Make an output the part of input 0 given by the cuts."""
    x = node.input_value(0)
    layout, shape = b.option(node).outputs[0], b.shape(x)
    elements = physical(shape, layout)
    for cut in cuts:
        if not layout.is_blocked or cut.axis != 1:
            elements = elements.slice(cut.axis, cut.start, cut.count, cut.step)
    for cut in cuts if layout.is_blocked else ():
        if cut.axis != 1:
            continue
        if cut.start % BLOCK or cut.step != 1:
            _take_lanes(node, b, value, cuts, cut)
            return
        elements = elements.slice(1, cut.start // BLOCK, -(-cut.count // BLOCK))
    size = item_size(x.element_type, layout)
    if elements.is_contiguous:
        b.view(value, x, elements.offset * size, layout)
        return
    places = Strided.row_major(elements.shape)
    copy_step(b, node, size, [Copy(b.input(x, layout), elements, b.output(value, layout), places)])


def _take_lanes(
    node: Node,
    b: SegmentBuilder,
    value: Output,
    cuts: Sequence[AxisSlice],
    channels: AxisSlice,
) -> None:
    """Take channels that do not start at a block, after cutting other axes."""
    x = node.input_value(0)
    layout, shape = b.option(node).outputs[0], list(b.shape(x))
    source = b.input(x, layout)
    elements = physical(shape, layout)
    for cut in cuts:
        if cut.axis != 1:
            elements = elements.slice(cut.axis, cut.start, cut.count, cut.step)
            shape[cut.axis] = cut.count
    if not elements.is_contiguous or elements.offset:
        part = b.temporary(layout_bytes(shape, x.element_type, layout))
        copy_step(b, node, item_size(x.element_type, layout), [
            Copy(source, elements, part, Strided.row_major(elements.shape))
        ])  # fmt: skip
        source = part
    ranges = [(0, channels.start, channels.step, channels.count)]
    select_channels(b, node, [source], [shape], ranges, b.output(value, layout))
