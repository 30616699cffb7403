"""Operators that put elements where indices say, in the order of the updates, so that the last one stays."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import boolean, i64
from engine.lowering import Refusal, RefusalCause, check_constant
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS, STORED, c_type, moved_c_type, stored_c_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.indexing import CHECKED, check_indexed, tuple_code
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import element_access, index_code, kernel_source, strides_of

_REDUCTIONS: Final = {
    "none": "{u}", "add": "({v} + {u})", "mul": "({v} * {u})", "min": "min({v}, {u})", "max": "max({v}, {u})",
}  # fmt: skip
_REAL: Final = {"min": "smaller({v}, {u})", "max": "larger({v}, {u})"}
_NUMBERS: Final = STORED - {boolean}


class ScatterBase(OpLowering[OperatorSpec]):
    """What the two have in common."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        reduction = attribute(node, "reduction")
        if reduction not in _REDUCTIONS:
            return Refusal(
                RefusalCause.ATTRIBUTE, f"reduction is {reduction!r}; expected one of {', '.join(_REDUCTIONS)}"
            )
        if reduction != "none" and (refused := check_types((node.input_value(0),), _NUMBERS)):
            return refused
        return check_indexed(node)


def _update(node: Node) -> str:
    """A statement that updates `y[to]` by `updates[from]`."""
    reduction = str(attribute(node, "reduction"))
    codes = _REDUCTIONS | (_REAL if node.input_value(0).element_type in FLOATS else {})
    if reduction == "none":
        return "y[to] = updates[from];"
    return f"store_T(y, to, {codes[reduction].format(v='load_T(y, to)', u='load_T(updates, from)')});"


def _signature(node: Node, name: str) -> str:
    moved, index = node.input_value(0).element_type, c_type(node.input_value(1).element_type)
    is_moved = attribute(node, "reduction") == "none"
    element = moved_c_type(moved) if is_moved else stored_c_type(moved)
    return (
        f"{element_access(moved)}{HELPERS}{CHECKED}__kernel void {name}(__global {element}* restrict y, "
        f"__global const {index}* restrict indices, __global const {element}* restrict updates, "
        "__global long* restrict fault, const int slot) {\n"
    )


def _copied(value: Output, result: Output, b: PlanBuilder) -> Buffer:
    shape, target = b.shape(value), b.output(result)
    strided_copy(b, value, b.input(value), target, shape, strides_of(shape), 0, strides_of(shape), 0)
    return target


@lowers("ScatterElements")
class ScatterElementsLowering(ScatterBase):
    """For each update an index along one axis; an item does all updates of one line along it."""

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, indices, updates = (node.input_value(index) for index in range(3))
        shape, given = b.shape(x), b.shape(indices)
        axis = int(attribute(node, "axis")) % len(shape)
        others = [each for each in range(len(shape)) if each != axis]
        steps, read = strides_of(shape), strides_of(given)
        index = index_code(
            [given[o] for o in others], [[steps[o] for o in others], [read[o] for o in others]], ["a", "u"]
        )
        source = (
            f"{_signature(node, 'scatter_elements')}  const ulong i = get_global_id(0);\n  {index}\n"
            f"  for (ulong k = 0; k < {given[axis]}ul; ++k) {{\n    const ulong from = u + k * {read[axis]}ul;\n"
            f"    const long at = checked(indices[from], {shape[axis]}, fault + slot);\n    if (at < 0) continue;\n"
            f"    const ulong to = a + (ulong)at * {steps[axis]}ul;\n    {_update(node)}\n  }}\n}}\n"
        )
        arguments: list[Given] = [
            _copied(x, node.output(0), b),
            b.input(indices),
            b.input(updates),
            *b.fault(shape[axis]),
        ]
        count = math.prod(given[o] for o in others) if math.prod(given) else 0
        b.launch(source, "scatter_elements", arguments, (count,))


@lowers("ScatterND")
class ScatterNDLowering(ScatterBase):
    """For each slice a tuple of indices; an item does all updates of its place in a slice."""

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, indices, updates = (node.input_value(index) for index in range(3))
        shape, (*places, depth) = b.shape(x), b.shape(indices)
        inner = math.prod(shape[depth:])
        source = (
            f"{_signature(node, 'scatter_nd')}  const ulong k = get_global_id(0);\n"
            f"  for (ulong row = 0; row < {math.prod(places)}ul; ++row) {{\n    long offset = 0;\n"
            f"    int is_inside = 1;\n{tuple_code(shape[:depth], inner)}    if (!is_inside) continue;\n"
            f"    const ulong to = offset + k, from = row * {inner}ul + k;\n    {_update(node)}\n  }}\n}}\n"
        )
        arguments: list[Given] = [
            _copied(x, node.output(0), b),
            b.input(indices),
            b.input(updates),
            *b.fault(*shape[:depth]),
        ]
        b.launch(source, "scatter_nd", arguments, (inner if math.prod(places) else 0,))


@lowers("OneHot")
class OneHotLowering(OpLowering[OperatorSpec]):
    """One value where a new axis equals an index, another elsewhere; an index out of range is nowhere."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        types = check_types((node.input_value(0),), _NUMBERS) or check_types((node.input_value(2),), STORED)
        return types or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        indices, values, y = node.input_value(0), node.input_value(2), node.output(0)
        shape = b.shape(y)
        axis = int(attribute(node, "axis")) % len(shape)
        depth, inner, outer = shape[axis], math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        element = moved_c_type(y.element_type)
        wide = "float" if indices.element_type in FLOATS else "long"  # holds the depth, which bytes may not
        source = (
            f"{element_access(indices.element_type)}__kernel void one_hot(__global const stored_T* restrict indices, "
            f"__global const {element}* restrict values, __global {element}* restrict y) {{\n"
            "  const ulong k = get_global_id(0), at = get_global_id(1), outer = get_global_id(2);\n"
            f"  {wide} found = load_T(indices, outer * {inner}ul + k);\n"
            f"  found = found < 0 ? found + {depth} : found;\n"
            f"  y[(outer * {depth}ul + at) * {inner}ul + k] = values[found == ({wide})at];\n}}\n"
        )
        b.launch(source, "one_hot", [b.input(indices), b.input(values), b.output(y)], (inner, depth, outer))


@lowers("TensorScatter")
class TensorScatterLowering(OpLowering[OperatorSpec]):
    """Steps of keys or values in a cache, each sample's at an index of its own."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        refused = check_types((node.input_value(0),), STORED)
        return refused or (check_types((node.input_value(2),), {i64}) if node.has_input(2) else None)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        past, update, y = node.input_value(0), node.input_value(1), node.output(0)
        shape = b.shape(past)
        axis = int(attribute(node, "axis")) % len(shape)
        rows, inner, length = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]), shape[axis]
        source = CHECKED + kernel_source(
            "tensor_scatter", T=moved_c_type(past.element_type), ROWS_EACH=math.prod(shape[1:axis]), INNER=inner,
            LENGTH=length, COUNT=b.shape(update)[axis], INDEXED=int(node.has_input(2)),
            CIRCULAR=int(attribute(node, "mode") == "circular"),
        )  # fmt: skip
        arguments: list[Given] = [b.input(past), b.input(update)]
        if node.has_input(2):
            arguments += [b.input(node.input_value(2)), *b.fault(length)]
        b.launch(source, "tensor_scatter", [*arguments, b.output(y)], (inner, length, rows))
