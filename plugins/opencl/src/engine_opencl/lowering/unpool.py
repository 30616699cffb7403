"""MaxUnpool: elements written back to their indices."""

from __future__ import annotations

import math

from engine.ir.element_type import i64
from engine.lowering import Refusal, check_constant
from engine.ops.pool import MaxUnpoolSpec
from engine_opencl.elements import FLOATS, moved_c_type
from engine_opencl.lowering.gather.indices import CHECKED
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source


@lowers("MaxUnpool", spec=MaxUnpoolSpec)
class MaxUnpoolLowering(OpLowering[MaxUnpoolSpec]):
    """Elements of a result that begins as zeros."""

    values = (2,)

    def check(self, spec: MaxUnpoolSpec) -> Refusal | None:
        node = spec.node
        return (
            check_types((node.input_value(0),), FLOATS)
            or check_types((node.input_value(1),), {i64})
            or check_constant(node, *self.values)
        )

    def lower(self, spec: MaxUnpoolSpec, b: LaunchPlanBuilder) -> None:
        node = spec.node
        x, indices, y = node.input_value(0), node.input_value(1), node.output(0)
        count, length = math.prod(b.shape(x)), math.prod(b.shape(y))
        source = CHECKED + kernel_source("max_unpool", T=moved_c_type(x.element_type), LENGTH=f"{length}l")
        winner = b.temporary(4 * length)
        b.launch(kernel_source("zero"), "zero", [winner], (length,))
        found: list[Given] = [b.input(indices), winner, *b.fault(length)]
        b.launch(source, "find_winners", found, (count,))
        b.launch(source, "max_unpool", [b.input(x), winner, b.output(y)], (length,))
