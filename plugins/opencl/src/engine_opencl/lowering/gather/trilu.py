"""Lowers Trilu, which keeps the upper or lower triangle of matrices."""

from __future__ import annotations

import math

import numpy as np

from engine.lowering import Refusal, check_constant
from engine.ops.gather import TriluSpec
from engine_opencl.elements import STORED, moved_c_type
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.lowering.strided import numbers_of
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder


@lowers("Trilu", spec=TriluSpec)
class TriluLowering(MovingLowering[TriluSpec]):
    """One triangle of each matrix; zeros in the other."""

    values = (1,)

    def check(self, spec: TriluSpec) -> Refusal | None:
        return check_types((spec.node.input_value(0),), STORED) or check_constant(spec.node, *self.values)

    def lower(self, spec: TriluSpec, b: LaunchPlanBuilder) -> None:
        x, given = spec.node.input_value(0), spec.input(1)
        diagonal = spec.at(None if given is None else numbers_of(b, given))
        *matrices, rows, columns = b.shape(x)
        order = ">=" if spec.upper else "<="
        element = moved_c_type(x.element_type)
        source = (
            f"__kernel void trilu(__global const {element}* restrict x, __global {element}* restrict y, "
            "const long diagonal) {\n  const long col = get_global_id(0), row = get_global_id(1);\n"
            f"  const ulong i = (get_global_id(2) * {rows}ul + row) * {columns}ul + col;\n"
            f"  y[i] = col - row {order} diagonal ? x[i] : 0;\n}}\n"
        )
        arguments: list[Given] = [b.input(x), b.output(spec.output()), np.int64(diagonal)]
        b.launch(source, "trilu", arguments, (columns, rows, math.prod(matrices)))
