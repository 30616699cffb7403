"""Operators that write elements at indices, in the order of the updates, so that the last one wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

from engine.ir import Output
from engine.ir.element_type import i64, u64
from engine.lowering import Refusal, check_constant
from engine.ops.gather import OneHotSpec, ScatterElementsSpec, ScatterNDSpec, ScatterSpec, TensorScatterSpec
from engine_opencl.elements import INTEGERS, REALS, STORED, c_type, moved_c_type, stored_c_type
from engine_opencl.expressions import HELPERS, for_type, functions_for
from engine_opencl.lowering.gather.indices import CHECKED, check_indexed, tuple_code
from engine_opencl.lowering.registry import MovingLowering, OpLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, index_code, kernel_source, strides_of

_REDUCTIONS: Final = {
    "add": "({v} + {u})", "mul": "({v} * {u})", "min": "min({v}, {u})", "max": "max({v}, {u})",
}  # fmt: skip
_REAL: Final = {"min": "smaller({v}, {u})", "max": "larger({v}, {u})"}
_NUMBERS: Final = REALS | INTEGERS


ScatterSpecT = TypeVar("ScatterSpecT", bound=ScatterSpec)


class ScatterBase(OpLowering[ScatterSpecT]):
    """Base of ScatterElements and ScatterND, which computes only where `reduction` is not "none"."""

    def computes_with(self, spec: ScatterSpecT) -> Sequence[Output | None]:
        return () if spec.reduction == "none" else super().computes_with(spec)

    def check(self, spec: ScatterSpecT) -> Refusal | None:
        if spec.reduction != "none" and (refused := check_types((spec.data,), _NUMBERS)):
            return refused
        return check_indexed(spec.data, spec.indices)


def _update(spec: ScatterSpec) -> str:
    """A statement that updates `y[to]` by `updates[from]`."""
    if spec.reduction == "none":
        return "y[to] = updates[from];"
    codes = _REDUCTIONS | (_REAL if spec.data.element_type in REALS else {})
    code = codes[spec.reduction].format(v="load_T(y, to)", u="load_T(updates, from)")
    return f"store_T(y, to, {for_type(code, c_type(spec.data.element_type))});"


def _signature(spec: ScatterSpec, name: str) -> str:
    moved, index = spec.data.element_type, c_type(spec.indices.element_type)
    is_moved = spec.reduction == "none"
    element = moved_c_type(moved) if is_moved else stored_c_type(moved)
    computing = "" if is_moved else element_access(moved) + HELPERS + functions_for(element)
    return (
        f"{computing}{CHECKED}__kernel void {name}(__global {element}* restrict y, "
        f"__global const {index}* restrict indices, __global const {element}* restrict updates, "
        "__global long* restrict fault, const int slot) {\n"
    )


def _copied(value: Output, result: Output, b: LaunchPlanBuilder) -> Buffer:
    shape, target = b.shape(value), b.output(result)
    strided_copy(b, value, b.input(value), target, shape, strides_of(shape), 0, strides_of(shape), 0)
    return target


@lowers("ScatterElements", spec=ScatterElementsSpec)
class ScatterElementsLowering(ScatterBase[ScatterElementsSpec]):
    """An index along one axis per update; an item does all updates of one line along it."""

    def lower(self, spec: ScatterElementsSpec, b: LaunchPlanBuilder) -> None:
        x, indices = spec.data, spec.indices
        shape, given = b.shape(x), b.shape(indices)
        axis = spec.axis
        others = [each for each in range(len(shape)) if each != axis]
        steps, read = strides_of(shape), strides_of(given)
        index = index_code(
            [given[o] for o in others], [[steps[o] for o in others], [read[o] for o in others]], ["a", "u"]
        )
        source = (
            f"{_signature(spec, 'scatter_elements')}  const ulong i = get_global_id(0);\n  {index}\n"
            f"  for (ulong k = 0; k < {given[axis]}ul; ++k) {{\n    const ulong from = u + k * {read[axis]}ul;\n"
            f"    const long at = checked(indices[from], {shape[axis]}, fault + slot);\n    if (at < 0) continue;\n"
            f"    const ulong to = a + (ulong)at * {steps[axis]}ul;\n    {_update(spec)}\n  }}\n}}\n"
        )
        arguments: list[Given] = [
            _copied(x, spec.output(), b),
            b.input(indices),
            b.input(spec.updates),
            *b.fault(shape[axis]),
        ]
        count = math.prod(given[o] for o in others) if math.prod(given) else 0
        b.launch(source, "scatter_elements", arguments, (count,))


@lowers("ScatterND", spec=ScatterNDSpec)
class ScatterNDLowering(ScatterBase[ScatterNDSpec]):
    """A tuple of indices per slice; an item does all updates of its position in a slice."""

    def lower(self, spec: ScatterNDSpec, b: LaunchPlanBuilder) -> None:
        x, indices = spec.data, spec.indices
        shape, (*places, depth) = b.shape(x), b.shape(indices)
        inner = math.prod(shape[depth:])
        source = (
            f"{_signature(spec, 'scatter_nd')}  const ulong k = get_global_id(0);\n"
            f"  for (ulong row = 0; row < {math.prod(places)}ul; ++row) {{\n    long offset = 0;\n"
            f"    int is_inside = 1;\n{tuple_code(shape[:depth], inner)}    if (!is_inside) continue;\n"
            f"    const ulong to = offset + k, from = row * {inner}ul + k;\n    {_update(spec)}\n  }}\n}}\n"
        )
        arguments: list[Given] = [
            _copied(x, spec.output(), b),
            b.input(indices),
            b.input(spec.updates),
            *b.fault(*shape[:depth]),
        ]
        b.launch(source, "scatter_nd", arguments, (inner if math.prod(places) else 0,))


@lowers("OneHot", spec=OneHotSpec)
class OneHotLowering(OpLowering[OneHotSpec]):
    """One value where a new axis equals the index, another elsewhere; an index out of range matches nowhere."""

    values = (1,)

    def computes_with(self, spec: OneHotSpec) -> Sequence[Output | None]:
        return (spec.indices,)

    def check(self, spec: OneHotSpec) -> Refusal | None:
        types = check_types((spec.indices,), _NUMBERS) or check_types((spec.values,), STORED)
        return types or check_constant(spec.node, *self.values)

    def lower(self, spec: OneHotSpec, b: LaunchPlanBuilder) -> None:
        indices, values, y = spec.indices, spec.values, spec.output()
        outer, depth, inner = spec.at(b.shape(y))
        element = moved_c_type(y.element_type)
        # Can hold the depth, which a byte may not.
        is_real = indices.element_type in REALS
        wide = c_type(indices.element_type) if is_real or indices.element_type is u64 else "long"
        source = (
            f"{element_access(indices.element_type)}__kernel void one_hot(__global const stored_T* restrict indices, "
            f"__global const {element}* restrict values, __global {element}* restrict y) {{\n"
            "  const ulong k = get_global_id(0), at = get_global_id(1), outer = get_global_id(2);\n"
            f"  {wide} found = load_T(indices, outer * {inner}ul + k);\n"
            f"  found = found < 0 ? found + {depth} : found;\n"
            f"  y[(outer * {depth}ul + at) * {inner}ul + k] = values[found == ({wide})at];\n}}\n"
        )
        b.launch(source, "one_hot", [b.input(indices), b.input(values), b.output(y)], (inner, depth, outer))


@lowers("TensorScatter", spec=TensorScatterSpec)
class TensorScatterLowering(MovingLowering[TensorScatterSpec]):
    """Writes steps of keys or values into a cache, at an index per sample."""

    def check(self, spec: TensorScatterSpec) -> Refusal | None:
        return check_types((spec.past,), STORED) or check_types((spec.input(2),), {i64})

    def lower(self, spec: TensorScatterSpec, b: LaunchPlanBuilder) -> None:
        past, update, starts = spec.past, spec.update, spec.input(2)
        shape = b.shape(past)
        rows, length, inner = spec.at(shape)
        source = CHECKED + kernel_source(
            "tensor_scatter", T=moved_c_type(past.element_type), ROWS_EACH=math.prod(shape[1 : spec.axis]), INNER=inner,
            LENGTH=length, COUNT=b.shape(update)[spec.axis], INDEXED=int(starts is not None),
            CIRCULAR=int(spec.mode == "circular"),
        )  # fmt: skip
        arguments: list[Given] = [b.input(past), b.input(update)]
        if starts is not None:
            arguments += [b.input(starts), *b.fault(length)]
        b.launch(source, "tensor_scatter", [*arguments, b.output(spec.output())], (inner, length, rows))
