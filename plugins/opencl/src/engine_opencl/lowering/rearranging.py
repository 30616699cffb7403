"""Operators that repeat elements, cut triangles out, or move between space and channels."""

from __future__ import annotations

import math

import numpy as np

from engine.ir.element_type import i64
from engine.lowering import Refusal, check_constant
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED, moved_c_type
from engine_opencl.lowering.movement import numbers_of, strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Given, PlanBuilder
from engine_opencl.source import kernel_source, strides_of


@lowers("Tile")
class TileLowering(OpLowering[OperatorSpec]):
    """Repetitions along axes."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        own = b.shape(x)
        shape = [n for pair in zip(numbers_of(b, node.input_value(1)), own, strict=True) for n in pair]
        strides = [s for step in strides_of(own) for s in (0, step)]
        strided_copy(b, x, b.input(x), b.output(y), shape, strides, 0, strides_of(shape), 0)


@lowers("SpaceToDepth")
class SpaceToDepthLowering(OpLowering[OperatorSpec]):
    """Blocks of pixels become blocks of channels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x = node.input_value(0)
        n, c, h, w = b.shape(x)
        size = int(attribute(node, "blocksize"))
        shape, read = (n, size, size, c, h // size, w // size), (c * h * w, w, 1, h * w, size * w, size)
        if attribute(node, "mode") == "CRD":
            shape, read = (n, c, size, size, *shape[4:]), (c * h * w, h * w, w, 1, size * w, size)
        strided_copy(b, x, b.input(x), b.output(node.output(0)), shape, read, 0, strides_of(shape), 0)


@lowers("Trilu")
class TriluLowering(OpLowering[OperatorSpec]):
    """One triangle of each matrix; zeros in the other."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x = node.input_value(0)
        shape = b.shape(x)
        diagonal = numbers_of(b, node.input_value(1))[0] if node.has_input(1) else 0
        rows, columns = shape[-2:]
        order = ">=" if attribute(node, "upper") else "<="
        element = moved_c_type(x.element_type)
        source = (
            f"__kernel void trilu(__global const {element}* restrict x, __global {element}* restrict y, "
            "const long diagonal) {\n  const long col = get_global_id(0), row = get_global_id(1);\n"
            f"  const ulong i = (get_global_id(2) * {rows}ul + row) * {columns}ul + col;\n"
            f"  y[i] = col - row {order} diagonal ? x[i] : 0;\n}}\n"
        )
        arguments: list[Given] = [b.input(x), b.output(node.output(0)), np.int64(diagonal)]
        b.launch(source, "trilu", arguments, (columns, rows, math.prod(shape[:-2])))


@lowers("DepthToSpace")
class DepthToSpaceLowering(OpLowering[OperatorSpec]):
    """Blocks of channels become blocks of pixels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        n, c, h, w = b.shape(node.input_value(0))
        size = int(attribute(node, "blocksize"))
        kept = c // size**2
        if attribute(node, "mode") == "CRD":
            inner, order = (n, kept, size, size, h, w), (0, 1, 4, 2, 5, 3)
        else:
            inner, order = (n, size, size, kept, h, w), (0, 3, 4, 1, 5, 2)
        steps = strides_of(inner)
        shape = [inner[axis] for axis in order]
        source, result = b.input(node.input_value(0)), b.output(node.output(0))
        strided_copy(b, node.input_value(0), source, result, shape, [steps[a] for a in order], 0, strides_of(shape), 0)


@lowers("ReverseSequence")
class ReverseSequenceLowering(OpLowering[OperatorSpec]):
    """Sequences backwards, each as far as it goes."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_types((node.input_value(1),), {i64})

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, lengths = node.input_value(0), node.input_value(1)
        first, second, *rest = b.shape(x)
        inner = math.prod(rest)
        source = kernel_source(
            "reverse_sequence", T=moved_c_type(x.element_type), A=first, B=second, INNER=inner,
            TIME_FIRST=int(attribute(node, "time_axis") == 0),
        )  # fmt: skip
        arguments: list[Given] = [b.input(x), b.input(lengths), b.output(node.output(0))]
        b.launch(source, "reverse_sequence", arguments, (inner, second, first))
