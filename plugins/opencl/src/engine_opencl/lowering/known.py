"""Operators whose values follow from shapes and constants: computed on the host when the plan is made.

Most are folded away before; what stays is too large to be kept as a constant of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ir import Node
from engine.lowering import Refusal, check_constant
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED, stored_type
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import strides_of


@lowers("Shape", "Size", "EyeLike", "ConstantOfShape", "Range")
class KnownLowering(OpLowering[OperatorSpec]):
    """Lengths, and what is made of them."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if refused := check_types((node.output(0),), STORED):
            return refused
        return None if node.op_type in ("Shape", "Size", "EyeLike") else check_constant(node, *range(node.num_inputs))

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        y = node.output(0)
        shape = b.shape(y)
        data = np.ascontiguousarray(_value(node, b), stored_type(y)).reshape(shape)
        steps = strides_of(shape)
        strided_copy(b, y, table(b, data), b.output(y), shape, steps, 0, steps, 0)


def _value(node: Node, b: PlanBuilder) -> NDArray[Any]:
    if node.op_type == "Shape":
        return np.array(b.shape(node.input_value(0))[attribute(node, "start") : node.attributes.get("end")])
    if node.op_type == "Size":
        return np.array(node.input_value(0).shape.size())
    if node.op_type == "EyeLike":
        rows, columns = b.shape(node.output(0))
        return np.eye(rows, columns, k=int(attribute(node, "k")))
    if node.op_type == "Range":
        start, _, step = (b.constant(node.input_value(index)) for index in range(3))
        assert start is not None
        assert step is not None
        steps = np.arange(b.shape(node.output(0))[0], dtype=start.dtype)
        return np.asarray(start.reshape(()) + steps * step.reshape(()))
    value = node.attributes.get("value")
    return np.full(b.shape(node.output(0)), 0.0 if value is None else np.asarray(value).reshape(-1)[0])
