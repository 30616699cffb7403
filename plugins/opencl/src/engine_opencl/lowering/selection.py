"""Operators that compare the elements along one axis, or add them up one after the other."""

from __future__ import annotations

import math

from engine.ir import Node
from engine.ops.registry import attribute
from engine_opencl.elements import FLOATS
from engine_opencl.lowering.elementwise import NUMBERS
from engine_opencl.lowering.registry import OpLowering, Refusal, check_constant, check_types, lowers
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import element_access, kernel_source

_NO_NAN = "#define isnan(x) 0\n"
"""For integers: OpenCL's function takes floating point alone."""


def _prefix(node: Node) -> str:
    element_type = node.input_value(0).element_type
    return element_access(element_type) + ("" if element_type in FLOATS else _NO_NAN)


def _span(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The elements before, along and behind an axis; a scalar is one element."""
    if not shape:
        return 1, 1, 1
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@lowers("ArgMax", "ArgMin", "Hardmax")
class ExtremeLowering(OpLowering):
    """Where the largest or smallest element is. NaN is more than any other, as numpy has it."""

    def check(self, node: Node) -> Refusal | None:
        return check_types((node.input_value(0),), FLOATS if node.op_type == "Hardmax" else NUMBERS)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        outer, length, inner = _span(b.shape(node.input_value(0)), int(attribute(node, "axis")))
        is_last = node.op_type != "Hardmax" and bool(attribute(node, "select_last_index"))
        source = _prefix(node) + kernel_source(
            "extreme",
            LENGTH=length, INNER=inner, LAST=int(is_last),
            ORDER="<" if node.op_type == "ArgMin" else ">", HARDMAX=int(node.op_type == "Hardmax"),
        )  # fmt: skip
        b.launch(source, "extreme", [b.input(node.input_value(0)), b.output(node.output(0))], (inner, outer))


@lowers("TopK")
class TopKLowering(OpLowering):
    """The largest or smallest elements in order: each item finds its element's rank, equal ones by their places."""

    def check(self, node: Node) -> Refusal | None:
        return check_types((node.input_value(0),), NUMBERS) or check_constant(node, 1)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape, axis = b.shape(node.input_value(0)), int(attribute(node, "axis"))
        outer, length, inner = _span(shape, axis)
        source = _prefix(node) + kernel_source(
            "top_k",
            LENGTH=length, INNER=inner,
            K=b.shape(node.output(0))[axis], LARGEST=int(attribute(node, "largest")),
        )  # fmt: skip
        buffers = [b.input(node.input_value(0)), b.output(node.output(0)), b.output(node.output(1))]
        count = 0 if 0 in b.shape(node.output(0)) else outer
        b.launch(source, "top_k", buffers, (inner, length, count))


@lowers("CumSum", "CumProd")
class RunningLowering(OpLowering):
    """Running sums or products along an axis: an item has a line."""

    def check(self, node: Node) -> Refusal | None:
        return check_types((node.input_value(0),), NUMBERS) or check_constant(node, 1)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        axis = b.constant(node.input_value(1))
        assert axis is not None
        outer, length, inner = _span(b.shape(node.input_value(0)), int(axis.reshape(-1)[0]))
        source = element_access(node.input_value(0).element_type) + kernel_source(
            "running",
            LENGTH=length, INNER=inner,
            START=int(node.op_type == "CumProd"), STEP="*" if node.op_type == "CumProd" else "+",
            EXCLUSIVE=int(attribute(node, "exclusive")), REVERSE=int(attribute(node, "reverse")),
        )  # fmt: skip
        b.launch(source, "running", [b.input(node.input_value(0)), b.output(node.output(0))], (inner, outer))
