"""Operators that only change shape or name; without a step unless the layout requires one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from engine.ir import Node
from engine.ir.element_type import boolean
from engine.lowering import Refusal, RefusalCause, check_inference_dropout
from engine.ops.reshape import DropoutSpec
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, static_shape
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Strided, check_movable, copy_all, is_map
from engine_cpu.segment import SegmentBuilder

_ANY_RANK = 1 << 16


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
class AliasLowering(OpLowering[OperatorSpec]):
    """The bytes of input 0. A map stays blocked if its batch and channel axes do not move."""

    values: ClassVar[tuple[int, ...]] = (1,)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        moved = spec.input(0) if self.is_bound_late(spec) else spec.output()
        return check_movable(spec.input(0), moved, max_dims=_ANY_RANK) or check_values(spec.node, self.values)

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


@lowers("Identity")
class IdentityLowering(AliasLowering):
    """The result is the input's memory; nothing is copied."""

    values = ()


@lowers("BitCast")
class BitCastLowering(AliasLowering):
    """The same bytes as elements of another type; types of less than a byte are stored in one each."""

    values = ()

    def check(self, spec: OperatorSpec) -> Refusal | None:
        if spec.output().element_type is boolean and spec.node.input_value(0).element_type is not boolean:
            return Refusal(RefusalCause.ELEMENT_TYPE, "kernels take only the bytes 0 and 1 as bool")
        return super().check(spec)


@lowers("Dropout", spec=DropoutSpec)
class DropoutLowering(AliasLowering):
    """The result is the input's memory, since nothing is dropped in inference; training is refused."""

    values = ()

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_inference_dropout(spec) or super().check(spec)


@lowers("Expand")
class ExpandLowering(OpLowering[OperatorSpec]):
    """Repeats along axes of length one, and new ones."""

    values = (1,)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        moved = spec.input(0) if self.is_bound_late(spec) else spec.output()
        return check_movable(spec.input(0), moved) or check_values(spec.node, self.values)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        if b.shape(x) == b.shape(y):
            b.alias(y, x)
            return
        elements = Strided.row_major(b.shape(x)).broadcast(b.shape(y))
        copy_all(spec.node, b, elements)

    def alias_of(self, spec: OperatorSpec) -> int | None:
        return 0 if static_shape(spec.node.input_value(0)) == static_shape(spec.output()) else None


def _keeps_channels(node: Node) -> bool:
    x, y = node.input_value(0), node.output(0)
    return is_map(x) and is_map(y) and static_shape(x)[:2] == static_shape(y)[:2]
