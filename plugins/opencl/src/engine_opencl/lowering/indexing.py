"""Operators that look elements up by computed indices. One that is out of range fails the inference by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import i32, i64
from engine.lowering import Refusal
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED, c_type, moved_c_type
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Given, PlanBuilder
from engine_opencl.source import index_code, kernel_source, strides_of

INDICES: Final = frozenset({i32, i64})
CHECKED: Final = """
inline long checked(long index, long length, __global long* fault) {
  const long place = index < 0 ? index + length : index;
  if (place >= 0 && place < length) return place;
  *fault = index < 0 ? index : index + 1;
  return -1;
}
"""
"""An index from the start of its dimension; -1, and the fault noted, where it is out of range."""


def check_indexed(node: Node, indices: int = 1) -> Refusal | None:
    """A refusal unless input 0 can be moved and the indices are integers."""
    return check_types((node.input_value(0),), STORED) or check_types((node.input_value(indices),), INDICES)


@lowers("Gather")
class GatherLowering(OpLowering[OperatorSpec]):
    """Whole slices along one axis. Constant indices are checked when the plan is made."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_indexed(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape, indices = b.shape(node.input_value(0)), b.shape(node.input_value(1))
        axis = int(attribute(node, "axis")) % len(shape)
        inner, count = math.prod(shape[axis + 1 :]), math.prod(indices)
        is_safe = _is_in_range(b, node.input_value(1), shape[axis])
        source = CHECKED + kernel_source(
            "gather",
            T=moved_c_type(node.input_value(0).element_type), INDEX=c_type(node.input_value(1).element_type),
            LENGTH=shape[axis], INNER=inner, COUNT=count, CHECK=int(not is_safe),
        )  # fmt: skip
        arguments: list[Given] = [b.input(node.input_value(0)), b.input(node.input_value(1)), b.output(node.output(0))]
        if not is_safe:
            arguments += b.fault(shape[axis])
        b.launch(source, "gather", arguments, (inner, count, math.prod(shape[:axis])))


def _is_in_range(b: PlanBuilder, value: Output, length: int) -> bool:
    known = b.constant(value)
    return known is not None and bool(((known >= -length) & (known < length)).all())


@lowers("GatherND")
class GatherNDLowering(OpLowering[OperatorSpec]):
    """Slices, each found by a tuple of indices."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_indexed(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, indices, y = node.input_value(0), node.input_value(1), node.output(0)
        shape, (*places, depth) = b.shape(x), b.shape(indices)
        batched = int(attribute(node, "batch_dims"))
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


def tuple_code(lengths: Sequence[int], inner: int) -> str:
    """Statements that add to `offset` what the tuple in row `row` of `indices` says, or clear `is_inside`."""
    lines = []
    for axis, (length, step) in enumerate(zip(lengths, strides_of(lengths), strict=True)):
        lines.append(
            f"  {{ const long at = checked(indices[row * {len(lengths)} + {axis}], {length}, fault + slot + {axis});\n"
            f"    is_inside &= at >= 0; offset += at * {step * inner}; }}\n"
        )
    return "".join(lines)


@lowers("GatherElements")
class GatherElementsLowering(OpLowering[OperatorSpec]):
    """For each element an index along one axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_indexed(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, indices, y = node.input_value(0), node.input_value(1), node.output(0)
        shape, target = b.shape(x), b.shape(indices)
        axis = int(attribute(node, "axis")) % len(shape)
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
