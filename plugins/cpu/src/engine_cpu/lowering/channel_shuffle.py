"""ChannelShuffle, in either layout of maps."""

from __future__ import annotations

from collections.abc import Sequence

from engine.lowering import Refusal
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.channel_shuffle import ChannelShuffleSpec
from engine_cpu.layout import Layout, LayoutOption, item_size
from engine_cpu.lowering.channels import select_channels
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, check_movable, copy_step, is_map
from engine_cpu.segment import SegmentBuilder


@lowers("ChannelShuffle", domain=INTERNAL_DOMAIN, spec=ChannelShuffleSpec)
class ChannelShuffleLowering(OpLowering[ChannelShuffleSpec]):
    """Whole channels of plain maps, lanes of blocked ones."""

    def check(self, spec: ChannelShuffleSpec) -> Refusal | None:
        return check_movable(spec.input(0))

    def layouts(self, spec: ChannelShuffleSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, 1)
        return (plain, LayoutOption.uniform(Layout.BLOCKED, 1)) if is_map(node.input_value(0)) else (plain,)

    def lower(self, spec: ChannelShuffleSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        layout, shape = b.option(node).outputs[0], b.shape(x)
        groups = spec.groups
        each = shape[1] // groups
        source, target = b.input(x, layout), b.output(y, layout)
        if layout.is_blocked:
            ranges = [(0, first, each, groups) for first in range(each)]
            select_channels(b, node, [source], [shape], ranges, target)
            return
        elements = Strided.row_major(shape).split(1, groups, each)
        elements = elements.permute((0, 2, 1, *range(3, len(elements.shape))))
        places = Strided.row_major(elements.shape)
        copy_step(b, node, item_size(x.element_type), [Copy(source, elements, target, places)])
