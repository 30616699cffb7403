"""Lowers Gather, GatherND and GatherElements."""

from __future__ import annotations

import math

from engine.ir import Output
from engine.lowering import Refusal
from engine.ops.gather import GatherNDSpec, GatherSpec
from engine_opencl.elements import c_type, moved_c_type
from engine_opencl.lowering.gather.indices import CHECKED, check_indexed, tuple_code
from engine_opencl.lowering.registry import MovingLowering, lowers
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import index_code, kernel_source, strides_of


@lowers("Gather", spec=GatherSpec)
class GatherLowering(MovingLowering[GatherSpec]):
    """Whole slices along one axis. Constant indices are checked when the plan is built."""

    def check(self, spec: GatherSpec) -> Refusal | None:
        return check_indexed(spec.data, spec.indices)

    def lower(self, spec: GatherSpec, b: LaunchPlanBuilder) -> None:
        outer, length, inner = spec.at(b.shape(spec.data))
        count = math.prod(b.shape(spec.indices))
        is_safe = _is_in_range(b, spec.indices, length)
        source = CHECKED + kernel_source(
            "gather",
            T=moved_c_type(spec.data.element_type), INDEX=c_type(spec.indices.element_type),
            LENGTH=length, INNER=inner, COUNT=count, CHECK=int(not is_safe),
        )  # fmt: skip
        arguments: list[Given] = [b.input(spec.data), b.input(spec.indices), b.output(spec.output())]
        if not is_safe:
            arguments += b.fault(length)
        b.launch(source, "gather", arguments, (inner, count, outer))


def _is_in_range(b: LaunchPlanBuilder, value: Output, length: int) -> bool:
    known = b.constant(value)
    return known is not None and bool(((known >= -length) & (known < length)).all())


@lowers("GatherND", spec=GatherNDSpec)
class GatherNDLowering(MovingLowering[GatherNDSpec]):
    """Slices, each found by a tuple of indices."""

    def check(self, spec: GatherNDSpec) -> Refusal | None:
        return check_indexed(spec.data, spec.indices)

    def lower(self, spec: GatherNDSpec, b: LaunchPlanBuilder) -> None:
        x, indices, y = spec.data, spec.indices, spec.output()
        shape, (*places, depth) = b.shape(x), b.shape(indices)
        batched = spec.batch_dims
        indexed = shape[batched : batched + depth]
        batches, count = math.prod(shape[:batched]), math.prod(places[batched:])
        inner = math.prod(shape[batched + depth :])
        element, index = moved_c_type(x.element_type), c_type(indices.element_type)
        source = (
            f"{CHECKED}__kernel void gather_nd(__global const {element}* restrict x, "
            f"__global const {index}* restrict indices, __global {element}* restrict y, "
            "__global long* restrict fault, const int slot) {\n"
            "  const ulong k = get_global_id(0), i = get_global_id(1), batch = get_global_id(2);\n"
            f"  const ulong row = batch * {count}ul + i;\n  long offset = batch * {math.prod(shape[batched:])}ul;\n"
            f"  int is_inside = 1;\n{tuple_code(indexed, inner)}"
            f"  y[row * {inner}ul + k] = is_inside ? x[offset + k] : 0;\n}}\n"
        )
        arguments: list[Given] = [b.input(x), b.input(indices), b.output(y), *b.fault(*indexed)]
        b.launch(source, "gather_nd", arguments, (inner, count, batches))


@lowers("GatherElements", spec=GatherSpec)
class GatherElementsLowering(MovingLowering[GatherSpec]):
    """An index along one axis for each element."""

    def check(self, spec: GatherSpec) -> Refusal | None:
        return check_indexed(spec.data, spec.indices)

    def lower(self, spec: GatherSpec, b: LaunchPlanBuilder) -> None:
        x, indices, y = spec.data, spec.indices, spec.output()
        shape, target = b.shape(x), b.shape(indices)
        axis = spec.axis
        steps = [0 if each == axis else step for each, step in enumerate(strides_of(shape))]
        element = moved_c_type(x.element_type)
        source = (
            f"{CHECKED}__kernel void gather_elements(__global const {element}* restrict x, "
            f"__global const {c_type(indices.element_type)}* restrict indices, __global {element}* restrict y, "
            "__global long* restrict fault, const int slot) {\n"
            f"  const ulong i = get_global_id(0);\n  {index_code(target, [steps], ['a'])}\n"
            f"  const long at = checked(indices[i], {shape[axis]}, fault + slot);\n"
            f"  y[i] = at < 0 ? 0 : x[a + (ulong)at * {strides_of(shape)[axis]}ul];\n}}\n"
        )
        arguments: list[Given] = [b.input(x), b.input(indices), b.output(y), *b.fault(shape[axis])]
        b.launch(source, "gather_elements", arguments, (math.prod(target),))
