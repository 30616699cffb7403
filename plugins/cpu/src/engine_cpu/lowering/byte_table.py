"""ByteTable, in either layout of maps."""

from __future__ import annotations

from collections.abc import Sequence

from engine.lowering import Refusal, RefusalCause
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, layout_bytes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import is_byte_map
from engine_cpu.segment import SegmentBuilder


@lowers("ByteTable", domain=INTERNAL_DOMAIN)
class ByteTableLowering(OpLowering[OperatorSpec]):
    """A function of each byte, looked up in a table of 256 results; maps may be in blocks of channels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        if spec.node.input_value(1).shape.rank.is_dynamic or not spec.node.input_value(1).shape.is_static:
            return Refusal(RefusalCause.DYNAMIC_SHAPE, f"the table is {spec.node.input_value(1).shape}")
        return None

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        plain = LayoutOption((Layout.PLAIN, Layout.PLAIN), (Layout.PLAIN,))
        if not is_byte_map(spec.node.input_value(0)):
            return (plain,)
        return (plain, LayoutOption((Layout.BLOCKED, Layout.PLAIN), (Layout.BLOCKED,)))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        x, table = spec.node.input_value(0), spec.node.input_value(1)
        layout = b.option(spec.node).outputs[0]
        inputs = [b.input(x, layout), b.input(table)]
        output = b.output(spec.output(), layout, in_place_of=x)
        b.step(spec.node, "byte_table", inputs, [output], count=layout_bytes(b.shape(x), x.element_type, layout))
