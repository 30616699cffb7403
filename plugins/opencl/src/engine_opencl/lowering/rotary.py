"""RotaryEmbedding: an item turns one pair of numbers of a head, wherever heads lie."""

from __future__ import annotations

from engine.ir import Node
from engine.ir.element_type import i64
from engine.lowering import Refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.lowering.attention.launches import Heads
from engine_opencl.lowering.indexing import CHECKED
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Given, PlanBuilder
from engine_opencl.source import kernel_source

_POSITIONS = 3


@lowers("RotaryEmbedding")
class RotaryEmbeddingLowering(OpLowering[OperatorSpec]):
    """Tables of cosines and sines for each batch and row, or by positions, which fail by name where out of range."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        positions = [node.input_value(_POSITIONS)] if _has_positions(node) else []
        refused = check_types((*(node.input_value(index) for index in range(3)), node.output(0)))
        return refused or check_types(positions, {i64})

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        heads = Heads.of(b.input(x), b.shape(x), int(attribute(node, "num_heads") or 1))
        batch, count, rows, size = heads.shape
        rotated = int(attribute(node, "rotary_embedding_dim") or 0) or size
        has_positions = _has_positions(node)
        tables = [b.input(node.input_value(index)) for index in (1, 2)]
        length = b.shape(node.input_value(1))[0]
        result = b.output(y)
        arguments: list[Given] = [heads.buffer, *tables, result]
        if has_positions:
            arguments += [b.input(node.input_value(_POSITIONS)), *b.fault(length)]
        source = CHECKED + kernel_source(
            "rotary", x.element_type,
            HEADS=count, ROWS=rows, HALF=rotated // 2, BATCH_STEP=heads.strides[0], HEAD_STEP=heads.strides[1],
            ROW_STEP=heads.strides[2], POSITIONS=int(has_positions), TABLE=length,
            IS_INTERLEAVED=int(attribute(node, "interleaved")),
        )  # fmt: skip
        b.launch(source, "rotary", arguments, (rotated // 2, rows, batch * count))
        if rotated < size:
            shape, steps = (batch, count, rows, size - rotated), (*heads.strides, 1)
            strided_copy(b, x, heads.buffer, result, shape, steps, rotated, steps, rotated)


def _has_positions(node: Node) -> bool:
    return node.num_inputs > _POSITIONS and node.has_input(_POSITIONS)
