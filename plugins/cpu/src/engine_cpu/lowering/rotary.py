"""RotaryEmbedding, over heads where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.ir import Constant, Node, Output
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.attention import Heads
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder


@lowers("RotaryEmbedding")
class RotaryEmbeddingLowering(OpLowering[OperatorSpec]):
    """Tables of cosines and sines for each batch and row, or by constant positions of constant tables."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        node = spec.node
        operands = [node.input_value(index) for index in range(3)]
        return first_refusal(check_types((*operands, node.output(0)), F32), self._check_positions(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering`."""
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        heads = Heads.of(b.shape(x), int(attribute(node, "num_heads") or 1))
        rotated = int(attribute(node, "rotary_embedding_dim") or 0) or heads.size
        half = rotated // 2
        tables = [_table(b, node, node.input_value(index)) for index in (1, 2)]
        source = b.input(x)
        b.step(
            node,
            "rotary_f32",
            [source, *tables],
            [b.output(y, in_place_of=x)],
            batch=heads.batch,
            heads=heads.heads,
            rows=heads.rows,
            size=heads.size,
            rotated=rotated,
            interleaved=int(attribute(node, "interleaved")),
            x=heads.strides,
            y=heads.strides,
            table=(heads.rows * half, half),
        )

    def _check_positions(self, node: Node) -> Refusal | None:
        if not node.has_input(3):
            return None
        constants = [node.input_value(index).node for index in (1, 2, 3)]
        table, positions = constants[0], constants[2]
        if not all(isinstance(each, Constant) for each in constants):
            return Refusal(RefusalCause.CONSTANT, "position_ids or a table is computed at run time; expected constants")
        assert isinstance(table, Constant)
        assert isinstance(positions, Constant)
        places, count = positions.data, len(table.data)
        if places.size and not (places.min() >= 0 and places.max() < count):
            return Refusal(RefusalCause.CONSTANT, f"position_ids are {places.min()} to {places.max()} of {count} rows")
        return None


def _table(b: SegmentBuilder, node: Node, table: Output) -> int:
    """The buffer of [B, S, rotated / 2]."""
    if not node.has_input(3):
        return b.input(table)
    positions = node.input_value(3)
    return b.weights(
        [table, positions], "rows at positions", lambda: np.ascontiguousarray(b.value(table)[b.value(positions)])
    )
