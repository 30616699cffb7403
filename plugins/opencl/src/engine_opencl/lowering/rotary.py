"""RotaryEmbedding: an item rotates one pair of elements of a head, in either layout of heads."""

from __future__ import annotations

from engine.ir.element_type import i64
from engine.lowering import Refusal
from engine.ops.rotary import RotarySpec
from engine_opencl.lowering.gather.indices import CHECKED
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source


@lowers("RotaryEmbedding", spec=RotarySpec)
class RotaryLowering(OpLowering[RotarySpec]):
    """Cosine and sine tables per batch and row, or by positions; one out of range fails with the node's name."""

    def check(self, spec: RotarySpec) -> Refusal | None:
        operands = [spec.input(index) for index in range(3)]
        return check_types([*operands, spec.output()]) or check_types([spec.position_ids], {i64})

    def lower(self, spec: RotarySpec, b: LaunchPlanBuilder) -> None:
        x, lengths = spec.node.input_value(0), spec.at(spec.input_shapes())
        heads, rotated = lengths.x, lengths.rotated
        source, result = b.input(x), b.output(spec.output())
        arguments: list[Given] = [source, *(b.input(spec.node.input_value(index)) for index in (1, 2)), result]
        if spec.position_ids is not None:
            arguments += [b.input(spec.position_ids), *b.fault(lengths.positions)]
        text = CHECKED + kernel_source(
            "rotary", x.element_type,
            HEADS=heads.heads, ROWS=heads.rows, HALF=rotated // 2, BATCH_STEP=heads.strides[0],
            HEAD_STEP=heads.strides[1], ROW_STEP=heads.strides[2], POSITIONS=int(spec.position_ids is not None),
            TABLE=lengths.positions, SHARES_TABLES=int(lengths.shares_tables), IS_INTERLEAVED=int(spec.interleaved),
        )  # fmt: skip
        b.launch(text, "rotary", arguments, (rotated // 2, heads.rows, heads.batch * heads.heads))
        if rotated < heads.size:
            shape, steps = (heads.batch, heads.heads, heads.rows, heads.size - rotated), (*heads.strides, 1)
            strided_copy(b, x, source, result, shape, steps, rotated, steps, rotated)
