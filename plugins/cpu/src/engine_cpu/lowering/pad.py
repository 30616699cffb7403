"""Lowers Pad to one step that copies the input and fills the border, in any of Pad's modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.lowering import Refusal, require_elements
from engine.ops.pad import PadSpec
from engine_cpu.layout import Layout, LayoutOption, item_size
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import check_movable, is_map, physical
from engine_cpu.segment import SegmentBuilder


def value_bits(value: np.ndarray) -> int:
    """The bits of a single element, as passed to kernels."""
    return int.from_bytes(np.ascontiguousarray(value).reshape(-1)[:1].tobytes(), "little", signed=True)


@lowers("Pad", spec=PadSpec)
class PadLowering(OpLowering[PadSpec]):
    """Any mode; a map stays blocked if its channels are not padded."""

    values = (1, 2, 3)

    def check(self, spec: PadSpec) -> Refusal | None:
        return check_movable(spec.input(0)) or check_values(spec.node, self.values)

    def layouts(self, spec: PadSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        if not is_map(node.input_value(0)) or node.input_value(0).shape[1] != node.output(0).shape[1]:
            return (plain,)
        inputs = (Layout.BLOCKED, *(Layout.PLAIN for _ in range(node.num_inputs - 1)))
        return (plain, LayoutOption(inputs, (Layout.BLOCKED,)))

    def lower(self, spec: PadSpec, b: SegmentBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        layout = b.option(spec.node).inputs[0]
        pads, given, axes = b.values(spec, 1, 2, 3)
        assert pads is not None
        lengths = spec.at(b.shape(x), pads, axes)
        if spec.mode != "constant":
            require_elements(spec.node, lengths.kept, "a border")
        before, after = list(lengths.before), list(lengths.after)
        if layout.is_blocked:
            if before[1] or after[1]:  # the number of channels does not change
                layout = Layout.PLAIN
            else:
                before, after = [*before, 0], [*after, 0]
        b.step(
            spec.node,
            "pad",
            [b.input(x, layout)],
            [b.output(y, layout)],
            element_bytes=item_size(x.element_type, layout),
            shape=list(physical(b.shape(x), layout).shape),
            pads=[*before, *after],
            mode=spec.mode,
            value=0 if given is None or not given.size else value_bits(given),
        )
