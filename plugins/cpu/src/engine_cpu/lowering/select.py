"""Lowers TopK, which selects the largest or smallest elements along one axis."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from engine.lowering import Refusal, check_types, first_refusal
from engine.ops.select import TopKSpec
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_TYPES: Final = frozenset({f32, f64, i8, i16, i32, i64, u8, u16, u32, u64})


@lowers("TopK", spec=TopKSpec)
class TopKLowering(OpLowering[TopKSpec]):
    """TopK, always sorted; NaN is larger than any number."""

    values = (1,)

    def check(self, spec: TopKSpec) -> Refusal | None:
        return first_refusal(check_values(spec.node, self.values), check_types([spec.data], _TYPES))

    def lower(self, spec: TopKSpec, b: SegmentBuilder) -> None:
        x = spec.data
        outer, length, inner = spec.at(b.shape(x))
        b.step(
            spec.node,
            "top_k",
            [b.input(x)],
            [b.output(output) for output in spec.node.outputs],
            type=x.element_type.name,
            k=int(b.value(spec.node.input_value(1)).item()),
            smallest=int(not spec.largest),
            outer=outer,
            axis=length,
            inner=inner,
        )
