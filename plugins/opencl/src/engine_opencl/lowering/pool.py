"""Pooling over windows and over whole maps."""

from __future__ import annotations

import math

from engine.ir.element_type import f32, i8, u8
from engine.lowering import Refusal, RefusalCause
from engine.ops.pool import GlobalLpPoolSpec, PoolSpec
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS
from engine_opencl.lowering.conv.conv import check_spatial_rank
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.reduce import reduce_axes
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, kernel_source


@lowers("GlobalMaxPool", "GlobalAveragePool")
class GlobalPoolLowering(OpLowering[OperatorSpec]):
    """The largest element or the mean of each map."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types(spec.node.input_values)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        _reduce_maps(b, spec, "ReduceMean" if spec.op_type == "GlobalAveragePool" else "ReduceMax")


@lowers("GlobalLpPool", spec=GlobalLpPoolSpec)
class GlobalLpPoolLowering(OpLowering[GlobalLpPoolSpec]):
    """The 1-norm or the 2-norm of each map."""

    def check(self, spec: GlobalLpPoolSpec) -> Refusal | None:
        if spec.p not in (1, 2):
            return Refusal(RefusalCause.ATTRIBUTE, f"p is {spec.p}; expected 1 or 2")
        return check_types(spec.node.input_values)

    def lower(self, spec: GlobalLpPoolSpec, b: LaunchPlanBuilder) -> None:
        _reduce_maps(b, spec, f"ReduceL{spec.p}")


def _reduce_maps(b: LaunchPlanBuilder, spec: OperatorSpec, op_type: str) -> None:
    x = spec.node.input_value(0)
    shape = b.shape(x)
    reduce_axes(b, op_type, x.element_type, b.input(x), b.output(spec.output()), shape, range(2, len(shape)))


@lowers("MaxPool", "AveragePool", "LpPool", spec=PoolSpec)
class PoolLowering(OpLowering[PoolSpec]):
    """The largest element, the mean, or the p-norm of each window."""

    def check(self, spec: PoolSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        allowed = {*FLOATS, u8, i8} if spec.op_type == "MaxPool" else FLOATS
        if refused := check_types((x,), allowed) or check_spatial_rank(x):
            return refused
        if len(x.shape) != 4 and spec.storage_order and spec.is_read(1):
            return Refusal(
                RefusalCause.ATTRIBUTE, f"storage_order is 1 for {len(x.shape) - 2} spatial dimensions; expected 2"
            )
        return None

    def lower(self, spec: PoolSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        shape = b.shape(x)
        g = spec.at(shape).with_axes(3)
        defines = _accumulation(spec) | window_defines(g) | {"COUNT_PADS": int(spec.count_include_pad)}
        defines |= {f"E{name}": g.inputs[axis] + g.pads_end[axis] for axis, name in enumerate("DHW")}
        size, arguments = (math.prod(g.outputs), shape[0] * shape[1]), [b.input(x), b.output(y)]
        if y.element_type in FLOATS and not spec.is_read(1):
            b.launch(kernel_source("pool", y.element_type, **defines), "pool", arguments, size)
            return
        defines |= {
            "INDICES": int(spec.is_read(1)), "BY_COLUMNS": spec.storage_order,
            "LOWEST": {u8: "0", i8: "-128"}.get(y.element_type, "-INFINITY"),
        }  # fmt: skip
        arguments += [b.output(spec.output(1))] if spec.is_read(1) else []
        source = element_access(y.element_type) + kernel_source("max_pool", f32, **defines)
        b.launch(source, "max_pool", arguments, size)


def _accumulation(spec: PoolSpec) -> dict[str, object]:
    """The summand and the function of the sum of a window; empty for the maximum."""
    if spec.op_type == "AveragePool":
        return {"IS_SUM": 1, "TERM(e)": "(e)", "RESULT(sum, count)": "((sum) / (count))"}
    if spec.op_type == "MaxPool":
        return {"IS_SUM": 0, "TERM(e)": "(e)", "RESULT(value, count)": "(value)"}
    terms = {1: ("fabs(e)", "(sum)"), 2: ("((e) * (e))", "sqrt(sum)")}
    term, result = terms.get(spec.p, (f"pow(fabs(e), {spec.p}.0f)", f"pow((sum), {literal(1 / spec.p)})"))
    return {"IS_SUM": 1, "TERM(e)": term, "RESULT(sum, count)": result}
