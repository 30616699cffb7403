"""MaxPool, AveragePool and their global forms, of one and two dimensions, on maps in blocks of 16 channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.native import Attribute
from engine.ops.spec import OperatorSpec
from engine.ops.windows import window_of
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.conv_geometry import as_pads, as_pair
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_LARGEST_STEP: Final = 4096


@lowers("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
class PoolingLowering(OpLowering[OperatorSpec]):
    """The values of a pooling; the indices of a MaxPool are not computed."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        node = spec.node
        return first_refusal(check_types((node.input_value(0), node.output(0)), F32), _check_window(node))

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        """Maps in blocks."""
        node = spec.node
        return tuple(
            LayoutOption.uniform(layout, 1, node.num_outputs) for layout in (Layout.BLOCKED, Layout.BLOCKED_BF16)
        )

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """One step."""
        node = spec.node
        source, out, layout = node.input_value(0), node.output(0), b.option(node).outputs[0]
        x, y = b.shape(source), b.shape(out)
        attributes: dict[str, Attribute] = {"batch": x[0], "in_channels": x[1], "out_channels": x[1]}
        is_global = node.op_type.startswith("Global")
        attributes |= _whole_map(x[2:]) if is_global else _window(node, x[2:], y[2:])
        if node.op_type == "AveragePool":
            attributes["count_include_pad"] = int(node.attributes.get("count_include_pad", 0))
        kernel = "max_pool" if node.op_type.endswith("MaxPool") else "average_pool"
        suffix = "bf16" if layout.is_bf16 else "f32"
        b.step(node, f"{kernel}_{suffix}", [b.input(source, layout)], [b.output(out, layout)], **attributes)


def _check_window(node: Node) -> Refusal | None:
    """One or two dimensions, values only, and steps that the kernels take."""
    shape = node.input_value(0).shape
    rank = len(shape)
    if rank not in (3, 4):
        return Refusal(RefusalCause.SHAPE, f"X has {rank - 2} spatial dimensions; expected 1 or 2")
    if shape[1].is_static and shape[1].min == 0:
        return Refusal(RefusalCause.SHAPE, f"X has no channels: {shape}")
    if node.num_outputs > 1 and node.output(1).num_consumers:
        return Refusal(RefusalCause.OP, "the indices of the largest values are read; the kernels compute values only")
    for name in ("strides", "dilations"):
        values = node.attributes.get(name) or ()
        if max(values, default=1) > _LARGEST_STEP:
            return Refusal(RefusalCause.ATTRIBUTE, f"{name} is {list(values)}; expected {_LARGEST_STEP} at most")
    return None


def _whole_map(lengths: Sequence[int]) -> dict[str, Attribute]:
    """The window of a global pooling: the map as one row, so that it is one loop."""
    pixels = math.prod(lengths)
    return {"in": [1, pixels], "out": [1, 1], "kernel": [1, max(1, pixels)]}


def _window(node: Node, lengths: Sequence[int], outs: Sequence[int]) -> dict[str, Attribute]:
    window = window_of(node, node.attributes["kernel_shape"])
    pairs = window.pads_for(lengths)
    pads = (*(a for a, _ in pairs), *(b for _, b in pairs))
    return {
        "in": list(as_pair(lengths)),
        "out": list(as_pair(outs)),
        "kernel": list(as_pair(window.kernel)),
        "strides": list(as_pair(window.strides)),
        "dilations": list(as_pair(window.dilations)),
        "pads": list(as_pads(pads)),
    }
