"""Operators that give the same elements another shape, or only another name: no step where no layout is in the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, static_shape
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import check_movable, is_map

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_ANY = 1 << 16


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
class AliasLowering(OpLowering[OperatorSpec]):
    """The bytes of input 0. A blocked map stays one where its batch and channels keep their place."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_movable(node, node.input_value(0), node.output(0), most_dims=_ANY)

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        plain = LayoutOption.uniform(Layout.PLAIN, node.num_inputs)
        if not _keeps_channels(node):
            return (plain,)
        more = (Layout.PLAIN,) * (node.num_inputs - 1)
        return (
            plain,
            LayoutOption((Layout.BLOCKED, *more), (Layout.BLOCKED,)),
            LayoutOption((Layout.BLOCKED_BF16, *more), (Layout.BLOCKED_BF16,), precision="bf16"),
        )

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        if b.option(node).outputs[0].is_blocked:
            b.alias_blocked(y, x, b.option(node).outputs[0])
        else:
            b.alias(y, x)

    def alias_of(self, spec: OperatorSpec) -> int | None:
        return 0


@lowers("Identity", "Dropout")
class IdentityLowering(AliasLowering):
    """The input as it is: Identity, and Dropout outside of training."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if node.op_type == "Dropout" and node.has_input(2):
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is given; expected Dropout for inference, without it")
        if node.num_outputs > 1 and node.output(1).num_consumers:
            return Refusal(RefusalCause.OP, "the mask of a Dropout is read; expected its first output alone")
        return super().check(spec)


def _keeps_channels(node: Node) -> bool:
    x, y = node.input_value(0), node.output(0)
    return is_map(x) and is_map(y) and static_shape(x)[:2] == static_shape(y)[:2]
