"""Reductions over any axes, and over the pixels of maps in blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.ir import Constant, Node
from engine.ir.element_type import boolean, f32, i8, i32, i64, u8
from engine.lowering import Refusal, check_constant, check_types, first_refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, padded_channels
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

# The names that the kernel has for them.
_OPS: Final = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceSumSquare": "sum_square", "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}  # fmt: skip
_EXTREMES: Final = frozenset({"ReduceMax", "ReduceMin"})
_ROOTS: Final = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})


@lowers(*_OPS)
class ReductionLowering(OpLowering[OperatorSpec]):
    """One step; the axes have to be known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering.check`."""
        node = spec.node
        allowed = {f32} if node.op_type in _ROOTS else {f32, i32, i64}
        if node.op_type in _EXTREMES:
            allowed |= {u8, i8, boolean}
        return first_refusal(check_constant(node, 1), check_types([node.input_value(0), node.output(0)], allowed))

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        """Plain; and, over all pixels of maps, as they come from a convolution."""
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        x = node.input_value(0)
        if x.element_type is not f32 or _map_axes(node) is None:
            return (plain,)
        rest = (Layout.PLAIN,) * (node.num_inputs - 1)
        options = [plain]
        if attribute(node, "keepdims"):
            options.append(LayoutOption((Layout.BLOCKED, *rest), (Layout.BLOCKED,)))
        if x.shape[1].get_length() % BLOCK == 0:  # the sums of all channels are then the same bytes in either layout
            options.append(LayoutOption((Layout.BLOCKED, *rest), (Layout.PLAIN,)))
        return options

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering.lower`."""
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        option = b.option(node)
        shape: Sequence[int] = b.shape(x)
        axes = _axes(node, len(shape))
        if option.inputs[0] is Layout.BLOCKED:
            batch, channels, *pixels = shape
            shape, axes = (batch * padded_channels(channels) // BLOCK, *pixels, BLOCK), list(range(1, 1 + len(pixels)))
        b.step(
            node,
            "reduce",
            [b.input(x, option.inputs[0])],
            [b.output(y, option.outputs[0])],
            op=_OPS[node.op_type],
            type=x.element_type.name,
            shape=shape,
            axes=axes,
        )


def _axes(node: Node, rank: int) -> list[int]:
    """The axes that are reduced, ascending."""
    given: list[int] = []
    if node.has_input(1):
        constant = node.input_value(1).node
        assert isinstance(constant, Constant)
        given = constant.data.reshape(-1).tolist()
    if not given:
        return [] if attribute(node, "noop_with_empty_axes") else list(range(rank))
    return sorted({axis % rank for axis in given})


def _map_axes(node: Node) -> list[int] | None:
    """The axes where they are those of all pixels of maps; else None."""
    rank = node.input_value(0).shape.rank.get_length()
    axes = _axes(node, rank)
    return axes if rank >= 3 and axes == list(range(2, rank)) else None
