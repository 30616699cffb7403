"""Softmax and LogSoftmax, over any axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from engine.ir import Node
from engine.ops.registry import attribute
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, Refusal, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder


@lowers("Softmax", "LogSoftmax")
class SoftmaxLowering(OpLowering):
    """One step over [outer, axis, inner], in place where the input is read by nothing else."""

    def check(self, node: Node) -> Refusal | None:
        return check_f32(node)

    def lower(self, node: Node, b: SegmentBuilder) -> None:
        x, y = node.input_value(0), node.output(0)
        shape = b.shape(x)
        axis = int(attribute(node, "axis")) % len(shape)
        b.step(
            node,
            "softmax_f32",
            [b.input(x)],
            [b.output(y, in_place_of=x)],
            outer=math.prod(shape[:axis]),
            axis=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
            log=int(node.op_type == "LogSoftmax"),
        )
