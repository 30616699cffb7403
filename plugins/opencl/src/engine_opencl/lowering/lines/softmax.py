"""Softmax and its logarithm."""

from __future__ import annotations

from engine.ir import Node
from engine.lowering import Refusal
from engine.ops.registry import attribute
from engine_opencl.lowering.lines.work_groups import launch_lines, lines_of, spans
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import PlanBuilder


@lowers("Softmax", "LogSoftmax")
class SoftmaxLowering(OpLowering):
    """Along one axis."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        x, y = node.input_value(0), node.output(0)
        outer, length, inner = spans(b.shape(x), int(attribute(node, "axis")))
        lines = lines_of(b.facts, outer * inner, length, inner)
        source = lines.source("softmax", y.element_type, LOG=int(node.op_type != "Softmax"))
        launch_lines(b, lines, source, "softmax", [b.input(x), b.output(y)])
