"""ExpertMatMul, by kernels that read the matrices of chosen experts as the file has them."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import bf16, f16, f32, i32, i64, u8
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.ops.internal import INTERNAL_DOMAIN, ExpertMatMulSpec
from engine_cpu.layout import item_size
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_INT8_ACTIVATIONS: Final = 4
"""The accuracy level from which activations may be rounded to 8 bits."""
_LANE_BITS: Final = 32


@lowers("ExpertMatMul", domain=INTERNAL_DOMAIN, spec=ExpertMatMulSpec)
class ExpertMatMulLowering(OpLowering[ExpertMatMulSpec]):
    """Products in f32 with numbers of f32, f16 and bf16, or with codes of 4 and 8 bits in blocks."""

    def check(self, spec: ExpertMatMulSpec) -> Refusal | None:
        return first_refusal(
            check_types([spec.x, spec.scale, spec.bias, spec.output()], F32),
            check_types([spec.weights], {u8} if spec.bits else {f32, f16, bf16}),
            check_types([spec.zero_point], {u8}),
            check_types([spec.experts], {i32, i64}),
            _check_block(spec),
        )

    def lower(self, spec: ExpertMatMulSpec, b: SegmentBuilder) -> None:
        tokens, x_ways, columns = b.shape(spec.x)
        experts, rows, _ = b.shape(spec.weights)
        given = [spec.x, spec.experts, spec.weights, spec.scale, spec.zero_point, spec.bias]
        attributes: dict[str, int | str] = {"bits": spec.bits}
        if spec.bits:
            attributes |= {"block": spec.block(columns), "zero_points": int(spec.zero_point is not None)}
            attributes["digits"] = 1 if spec.accuracy_level == _INT8_ACTIVATIONS else 3
        elif spec.weights.element_type is not f32:
            attributes["weights"] = spec.weights.element_type.name
        b.step(
            spec.node,
            "expert_matmul",
            [b.input(value) for value in given if value is not None],
            [b.output(spec.output())],
            **attributes,
            tokens=tokens,
            ways=b.shape(spec.experts)[1],
            x_ways=x_ways,
            experts=experts,
            n=rows,
            k=columns,
            index_bytes=item_size(spec.experts.element_type),
            bias=int(spec.bias is not None),
        )


def _check_block(spec: ExpertMatMulSpec) -> Refusal | None:
    columns = spec.columns
    if not spec.bits or not spec.block_size:
        return None
    lane = _LANE_BITS // spec.bits
    if spec.block_size % lane and not (columns.is_static and spec.block_size >= columns.get_length()):
        expected = f"a multiple of {lane} for codes of {spec.bits} bits"
        return Refusal(RefusalCause.ATTRIBUTE, f"block_size is {spec.block_size}; expected {expected}")
    return None
