"""Operators that compare or accumulate the elements along one axis."""

from __future__ import annotations

from dataclasses import replace

from engine.ir import Output
from engine.lowering import Refusal, check_constant
from engine.ops.axis_lengths import AxisLengths
from engine.ops.reduce import ArgReduceSpec, CumulativeSpec
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import C_BYTES, REALS, c_type
from engine_opencl.lowering.elementwise import NUMBERS
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of
from engine_opencl.lowering.strided import numbers_of
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access

_NAN = {True: "#define is_nan(x) isnan(x)\n", False: "#define is_nan(x) 0\n"}
"""OpenCL's function supports only floating point."""


def comparable(value: Output) -> str:
    """Definitions for comparing the elements of a value."""
    element_type = value.element_type
    return element_access(element_type) + _NAN[element_type in REALS]


@lowers("ArgMax", "ArgMin", spec=ArgReduceSpec)
class ArgReduceLowering(OpLowering[ArgReduceSpec]):
    """The index of the largest or smallest element. NaN is the extreme, as in numpy."""

    def check(self, spec: ArgReduceSpec) -> Refusal | None:
        return check_types((spec.data,), NUMBERS)

    def lower(self, spec: ArgReduceSpec, b: LaunchPlanBuilder) -> None:
        order = "<" if spec.op_type == "ArgMin" else ">"
        launch_extreme(spec, spec.at(b.shape(spec.data)), b, ORDER=order, LAST=int(spec.select_last_index), HARDMAX=0)


def launch_extreme(spec: OperatorSpec, lengths: AxisLengths, b: LaunchPlanBuilder, **definitions: int | str) -> None:
    """Find the extreme element of each row of input 0, for output 0."""
    x, (outer, length, inner) = spec.node.input_value(0), lengths
    rows = rows_of(b.facts, outer * inner, length, inner)
    source = rows.source("extreme", prefix=comparable(x), **definitions)
    # The element and its index, aligned to the size of the element.
    entry = 2 * max(C_BYTES[c_type(x.element_type)], 4)
    launch_rows(b, rows, source, "extreme", [b.input(x), b.output(spec.output())], entry)


@lowers("CumSum", "CumProd", spec=CumulativeSpec)
class CumulativeLowering(OpLowering[CumulativeSpec]):
    """Running sums or products along an axis."""

    values = (1,)

    def check(self, spec: CumulativeSpec) -> Refusal | None:
        return check_types((spec.data,), NUMBERS) or check_constant(spec.node, *self.values)

    def lower(self, spec: CumulativeSpec, b: LaunchPlanBuilder) -> None:
        x = spec.data
        outer, length, inner = spec.at(b.shape(x), numbers_of(b, spec.node.input_value(1)))
        rows = rows_of(b.facts, outer * inner, length, inner)
        if b.facts.kind == "cpu":
            # Sequential accumulation takes less time than the steps of a parallel scan.
            rows = replace(rows, lanes=1, per_group=min(16, rows.group), is_by_outer=rows.is_across)
        is_product = spec.op_type == "CumProd"
        source = rows.source(
            "running", prefix=element_access(x.element_type), START=int(is_product), STEP="*" if is_product else "+",
            EXCLUSIVE=int(spec.exclusive), REVERSE=int(spec.reverse),
        )  # fmt: skip
        launch_rows(b, rows, source, "running", [b.input(x), b.output(spec.output())], C_BYTES[c_type(x.element_type)])
