"""Softmax and its logarithm."""

from __future__ import annotations

from engine.lowering import Refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of, spans
from engine_opencl.plan import PlanBuilder


@lowers("Softmax", "LogSoftmax")
class SoftmaxLowering(OpLowering[OperatorSpec]):
    """Along one axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        outer, length, inner = spans(b.shape(x), int(attribute(node, "axis")))
        rows = rows_of(b.facts, outer * inner, length, inner)
        source = rows.source("softmax", y.element_type, LOG=int(node.op_type != "Softmax"))
        launch_rows(b, rows, source, "softmax", [b.input(x), b.output(y)])
