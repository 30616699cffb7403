"""Pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause, check_constant, first_refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, item_size
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import check_movable, is_map, physical

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_MODES: Final = ("constant", "edge", "reflect", "wrap")


def value_bits(value: np.ndarray) -> int:
    """The bits of a single element, as kernels take them."""
    return int.from_bytes(np.ascontiguousarray(value).reshape(-1)[:1].tobytes(), "little", signed=True)


@lowers("Pad")
class PadLowering(OpLowering[OperatorSpec]):
    """Known pads in any mode; a blocked map is padded where its channels are not."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if refused := first_refusal(check_movable(node, node.input_value(0)), check_constant(node, 1, 2, 3)):
            return refused
        if (mode := attribute(node, "mode")) not in _MODES:
            return Refusal(RefusalCause.ATTRIBUTE, f"mode is {mode!r}; expected one of {', '.join(_MODES)}")
        return None

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        if not is_map(node.input_value(0)) or node.input_value(0).shape[1] != node.output(0).shape[1]:
            return (plain,)
        inputs = (Layout.BLOCKED, *(Layout.PLAIN for _ in range(node.num_inputs - 1)))
        return (plain, LayoutOption(inputs, (Layout.BLOCKED,)))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        layout = b.option(node).inputs[0]
        before, after = _pads(node, b)
        if layout.is_blocked:
            if before[1] or after[1]:  # as many channels come as go
                layout = Layout.PLAIN
            else:
                before, after = [*before, 0], [*after, 0]
        value = 0
        if node.has_input(2) and (given := b.value(node.input_value(2))).size:
            value = value_bits(given)
        b.step(
            node,
            "pad",
            [b.input(x, layout)],
            [b.output(y, layout)],
            element_bytes=item_size(x.element_type, layout),
            shape=list(physical(b.shape(x), layout).shape),
            pads=[*before, *after],
            mode=attribute(node, "mode"),
            value=value,
        )


def _pads(node: Node, b: SegmentBuilder) -> tuple[list[int], list[int]]:
    """For each axis of input 0, what comes before and after."""
    rank = len(b.shape(node.input_value(0)))
    axes = b.value(node.input_value(3)).reshape(-1).tolist() if node.has_input(3) else list(range(rank))
    pads = b.value(node.input_value(1)).reshape(-1).tolist()
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[len(axes) + index]
    return before, after
