"""Lowers RotaryEmbedding to one step, which reads and writes the heads by strides, without a transposed copy."""

from __future__ import annotations

import numpy as np

from engine.ir import Constant, Output
from engine.lowering import Refusal, RefusalCause, check_types
from engine.ops.rotary import RotarySpec
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("RotaryEmbedding", spec=RotarySpec)
class RotaryLowering(OpLowering[RotarySpec]):
    """Tables of cosines and sines for each batch and row, or by constant positions of constant tables."""

    def check(self, spec: RotarySpec) -> Refusal | None:
        operands = [spec.input(index) for index in range(3)]
        return check_types((*operands, spec.output()), F32) or self._check_positions(spec)

    def lower(self, spec: RotarySpec, b: SegmentBuilder) -> None:
        x, lengths = spec.node.input_value(0), spec.at(spec.input_shapes())
        heads, half = lengths.x, lengths.rotated // 2
        tables = [_table(b, spec, spec.node.input_value(index)) for index in (1, 2)]
        b.step(
            spec.node,
            "rotary_f32",
            [b.input(x), *tables],
            [b.output(spec.output(), in_place_of=x)],
            batch=heads.batch,
            heads=heads.heads,
            rows=heads.rows,
            size=heads.size,
            rotated=lengths.rotated,
            interleaved=int(spec.interleaved),
            x=heads.strides,
            y=heads.strides,
            table=(0 if lengths.shares_tables else heads.rows * half, half),
        )

    def _check_positions(self, spec: RotarySpec) -> Refusal | None:
        if spec.position_ids is None:
            return None
        constants = [spec.node.input_value(index).node for index in (1, 2, 3)]
        table, positions = constants[0], constants[2]
        if not all(isinstance(each, Constant) for each in constants):
            return Refusal(RefusalCause.CONSTANT, "position_ids or a table is computed at run time; expected constants")
        assert isinstance(table, Constant)
        assert isinstance(positions, Constant)
        rows, count = positions.data, len(table.data)
        if rows.size and not (rows.min() >= 0 and rows.max() < count):
            return Refusal(
                RefusalCause.CONSTANT, f"position_ids are {rows.min()}..{rows.max()}; expected 0..{count - 1}"
            )
        return None


def _table(b: SegmentBuilder, spec: RotarySpec, table: Output) -> int:
    """The buffer of [B, S, rotated / 2]."""
    positions = spec.position_ids
    if positions is None:
        return b.input(table)
    return b.weights(
        [table, positions], "rows at positions", lambda: np.ascontiguousarray(b.value(table)[b.value(positions)])
    )
