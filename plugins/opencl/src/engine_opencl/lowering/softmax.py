"""Lowers Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from engine.lowering import Refusal
from engine.ops.softmax import SoftmaxSpec
from engine_opencl.elements import C_BYTES, REALS, c_type
from engine_opencl.lowering.arg_reduce import launch_extreme
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of
from engine_opencl.plan_builder import LaunchPlanBuilder


@lowers("Softmax", "LogSoftmax", spec=SoftmaxSpec)
class SoftmaxLowering(OpLowering[SoftmaxSpec]):
    """Softmax, or its logarithm, along one axis."""

    def check(self, spec: SoftmaxSpec) -> Refusal | None:
        return check_types(spec.node.input_values, REALS)

    def lower(self, spec: SoftmaxSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        outer, length, inner = spec.at(spec.input_shapes())
        rows = rows_of(b.facts, outer * inner, length, inner)
        source = rows.source("softmax", y.element_type, LOG=int(spec.op_type == "LogSoftmax"))
        launch_rows(b, rows, source, "softmax", [b.input(x), b.output(y)], C_BYTES[c_type(y.element_type)])


@lowers("Hardmax", spec=SoftmaxSpec)
class HardmaxLowering(OpLowering[SoftmaxSpec]):
    """1 at the first maximum along the axis, 0 elsewhere."""

    def check(self, spec: SoftmaxSpec) -> Refusal | None:
        return check_types(spec.node.input_values, REALS)

    def lower(self, spec: SoftmaxSpec, b: LaunchPlanBuilder) -> None:
        launch_extreme(spec, spec.at(spec.input_shapes()), b, ORDER=">", LAST=0, HARDMAX=1)
