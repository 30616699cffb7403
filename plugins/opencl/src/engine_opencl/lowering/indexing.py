"""Operators that look elements up by computed indices."""

from __future__ import annotations

import math

from engine.ir import Node
from engine.ir.element_type import i32, i64
from engine.ops.registry import attribute
from engine_opencl.elements import STORED, c_type
from engine_opencl.lowering.registry import OpLowering, Refusal, check_types, lowers
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import kernel_source


@lowers("Gather")
class GatherLowering(OpLowering):
    """Whole slices along one axis. An index out of range is brought to the nearest end: a device cannot refuse it."""

    def check(self, node: Node) -> Refusal | None:
        return check_types((node.input_value(0),), STORED) or check_types((node.input_value(1),), {i32, i64})

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape, indices = b.shape(node.input_value(0)), b.shape(node.input_value(1))
        axis = int(attribute(node, "axis")) % len(shape)
        inner, count = math.prod(shape[axis + 1 :]), math.prod(indices)
        source = kernel_source(
            "gather",
            T=c_type(node.input_value(0).element_type), INDEX=c_type(node.input_value(1).element_type),
            LENGTH=shape[axis], INNER=inner, COUNT=count,
        )  # fmt: skip
        arguments = [b.input(node.input_value(0)), b.input(node.input_value(1)), b.output(node.output(0))]
        b.launch(source, "gather", arguments, (inner, count, math.prod(shape[:axis])))
