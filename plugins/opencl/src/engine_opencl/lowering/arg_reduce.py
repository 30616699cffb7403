"""Operators that compare the elements along one axis, or add them up one after the other."""

from __future__ import annotations

from dataclasses import replace

from engine.ir import Node
from engine.lowering import Refusal, check_constant, require_elements
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS
from engine_opencl.lowering.elementwise import NUMBERS
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of, spans
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import element_access

_NO_NAN = "#define isnan(x) 0\n"
"""For integers: OpenCL's function takes floating point alone."""


def comparable(node: Node) -> str:
    """Definitions for the elements of a node's first input."""
    element_type = node.input_value(0).element_type
    return element_access(element_type) + ("" if element_type in FLOATS else _NO_NAN)


@lowers("ArgMax", "ArgMin", "Hardmax")
class ExtremeLowering(OpLowering[OperatorSpec]):
    """Where the largest or smallest element is. NaN is more than any other, as numpy has it."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), FLOATS if node.op_type == "Hardmax" else NUMBERS)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        outer, length, inner = spans(b.shape(x), int(attribute(node, "axis")))
        require_elements(node, [length], "the extreme")
        is_last = node.op_type != "Hardmax" and bool(attribute(node, "select_last_index"))
        rows = rows_of(b.facts, outer * inner, length, inner)
        source = rows.source(
            "extreme", prefix=comparable(node), LAST=int(is_last),
            ORDER="<" if node.op_type == "ArgMin" else ">", HARDMAX=int(node.op_type == "Hardmax"),
        )  # fmt: skip
        launch_rows(b, rows, source, "extreme", [b.input(x), b.output(y)])


@lowers("CumSum", "CumProd")
class RunningLowering(OpLowering[OperatorSpec]):
    """Running sums or products along an axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), NUMBERS) or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        axis = b.constant(node.input_value(1))
        assert axis is not None
        outer, length, inner = spans(b.shape(x), int(axis.reshape(-1)[0]))
        rows = rows_of(b.facts, outer * inner, length, inner)
        if b.facts.kind == "cpu":
            # Adding one after the other takes less than the steps in which items add at once.
            rows = replace(rows, lanes=1, per_group=min(16, rows.group), is_by_outer=rows.is_across)
        source = rows.source(
            "running", prefix=element_access(x.element_type),
            START=int(node.op_type == "CumProd"), STEP="*" if node.op_type == "CumProd" else "+",
            EXCLUSIVE=int(attribute(node, "exclusive")), REVERSE=int(attribute(node, "reverse")),
        )  # fmt: skip
        launch_rows(b, rows, source, "running", [b.input(x), b.output(y)])
