"""Operators that look at whole rows: softmax, normalizations, reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import boolean, i8, i32, i64, u8
from engine.ops.registry import attribute
from engine_opencl.elements import FLOATS, stored_type
from engine_opencl.lowering.registry import OpLowering, Refusal, check_constant, check_types, lowers
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import collapsed, element_access, index_code, kernel_source, strides_of


@lowers("Softmax", "LogSoftmax")
class SoftmaxLowering(OpLowering):
    """Along one axis."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape = b.shape(node.input_value(0))
        axis = int(attribute(node, "axis")) % max(len(shape), 1)
        inner = math.prod(shape[axis + 1 :])
        source = kernel_source(
            "softmax",
            node.output(0).element_type,
            LENGTH=shape[axis] if shape else 1,
            INNER=inner,
            LOG=int(node.op_type != "Softmax"),
        )
        b.launch(
            source,
            "softmax",
            [b.input(node.input_value(0)), b.output(node.output(0))],
            (inner, math.prod(shape[:axis])),
        )


@lowers("LayerNormalization", "RMSNormalization")
class RowNormLowering(OpLowering):
    """Over all axes from one on."""

    def check(self, node: Node) -> Refusal | None:
        if any(output.target_inputs for output in node.outputs[1:]):
            return Refusal("attribute", "mean or deviation are read")
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape = b.shape(node.input_value(0))
        axis = int(attribute(node, "axis")) % len(shape)
        length = math.prod(shape[axis:])
        values = [node.input_value(i) for i in range(node.num_inputs) if node.has_input(i)]
        is_even = all(math.prod(b.shape(value)) == length for value in values[1:])
        mean = node.op_type == "LayerNormalization"
        source = kernel_source(
            "row_norm", node.output(0).element_type, LENGTH=length, MEAN=int(mean), SHIFT=int(len(values) > 2)
        )
        buffers = [b.input(values[0])]
        buffers += [b.input(value) if is_even else _expanded(value, shape[axis:], b) for value in values[1:]]
        epsilon = float(attribute(node, "epsilon"))
        b.launch(source, "row_norm", [*buffers, b.output(node.output(0)), epsilon], (math.prod(shape[:axis]),))


def _expanded(value: Output, shape: Sequence[int], b: PlanBuilder) -> Buffer:
    """A scale or shift, repeated to the shape of a row."""
    from engine_opencl.lowering.movement import strided_copy

    own = (1,) * (len(shape) - len(b.shape(value))) + b.shape(value)
    read = [0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True)]
    target = b.temporary(math.prod(shape) * stored_type(value).itemsize)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


@lowers("InstanceNormalization", "GroupNormalization")
class MapNormLowering(OpLowering):
    """Over each channel's map, or over the maps of a group of channels."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        n, c, *space = b.shape(node.input_value(0))
        groups = c if node.op_type == "InstanceNormalization" else int(attribute(node, "num_groups"))
        pixels = math.prod(space)
        source = kernel_source(
            "map_norm", node.output(0).element_type, PER_GROUP=c // groups, PIXELS=pixels, GROUPS=groups
        )
        buffers = [b.input(node.input_value(index)) for index in range(3)]
        b.launch(
            source, "map_norm", [*buffers, b.output(node.output(0)), float(attribute(node, "epsilon"))], (n * groups,)
        )


@lowers("LpNormalization")
class LpNormLowering(OpLowering):
    """Lines along an axis, divided by the sum of what they hold or by their length; a line of zeros stays."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape = b.shape(node.input_value(0))
        axis = int(attribute(node, "axis")) % len(shape)
        inner = math.prod(shape[axis + 1 :])
        source = kernel_source(
            "lp_norm", node.output(0).element_type, LENGTH=shape[axis], INNER=inner, P=int(attribute(node, "p"))
        )
        arguments = [b.input(node.input_value(0)), b.output(node.output(0))]
        b.launch(source, "lp_norm", arguments, (inner, math.prod(shape[:axis])))


@lowers("BatchNormalization")
class BatchNormLowering(OpLowering):
    """With statistics that are given."""

    def check(self, node: Node) -> Refusal | None:
        if node.attributes.get("training_mode"):
            return Refusal("attribute", "training_mode is on")
        return check_types(node.input_values)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        n, c, *space = b.shape(node.input_value(0))
        pixels = math.prod(space)
        buffers = [b.input(node.input_value(index)) for index in range(5)]
        arguments: list[Given] = [*buffers, b.output(node.output(0)), float(attribute(node, "epsilon"))]
        b.launch(
            kernel_source("batch_norm", node.output(0).element_type, C=c, PIXELS=pixels),
            "batch_norm",
            arguments,
            (pixels, c, n),
        )


# Operator: start, step on accumulator `s` with element `v`, end with the number of elements `n`.
INTEGER_REDUCTIONS: Final = {
    "ReduceSum": ("0", "s += v", "s"),
    "ReduceMax": ("LEAST", "s = max(s, v)", "s"),
    "ReduceMin": ("MOST", "s = min(s, v)", "s"),
    "ReduceProd": ("1", "s *= v", "s"),
    "ReduceSumSquare": ("0", "s += v * v", "s"),
    "ReduceL1": ("0", "s += v < 0 ? -v : v", "s"),
}
_LIMITS: Final = {
    i32: ("INT_MIN", "INT_MAX"), i64: ("LONG_MIN", "LONG_MAX"), u8: ("0", "UCHAR_MAX"),
    i8: ("CHAR_MIN", "CHAR_MAX"), boolean: ("0", "1"),
}  # fmt: skip
REDUCTIONS: Final = {
    "ReduceLogSumExp": ("0.0f", "s += exp(v - top)", "top + log(s)"),
    "ReduceSum": ("0.0f", "s += v", "s"),
    "ReduceMean": ("0.0f", "s += v", "s / n"),
    "ReduceMax": ("-INFINITY", "s = isnan(v) || v > s ? v : s", "s"),
    "ReduceMin": ("INFINITY", "s = isnan(v) || v < s ? v : s", "s"),
    "ReduceProd": ("1.0f", "s *= v", "s"),
    "ReduceSumSquare": ("0.0f", "s += v * v", "s"),
    "ReduceL1": ("0.0f", "s += fabs(v)", "s"),
    "ReduceL2": ("0.0f", "s += v * v", "sqrt(s)"),
    "ReduceLogSum": ("0.0f", "s += v", "log(s)"),
}


@lowers(*REDUCTIONS)
class ReductionLowering(OpLowering):
    """One number of all elements along some axes: one work item a number."""

    def check(self, node: Node) -> Refusal | None:
        is_comparing = node.op_type in ("ReduceMax", "ReduceMin")
        integers = _LIMITS.keys() if is_comparing else {i32, i64} if node.op_type in INTEGER_REDUCTIONS else set()
        return check_types((node.input_value(0),), {*FLOATS, *integers}) or check_constant(node, 1)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        shape = b.shape(node.input_value(0))
        axes = _axes(node, len(shape), b)
        element_type = node.input_value(0).element_type
        start, step, end = (REDUCTIONS if element_type in FLOATS else INTEGER_REDUCTIONS)[node.op_type]
        least, most = _LIMITS.get(element_type, ("0", "0"))
        strides = strides_of(shape)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        outer, (outer_steps,) = collapsed([shape[a] for a in kept], [strides[a] for a in kept])
        ordered = sorted(axes)
        inner, (inner_steps,) = collapsed([shape[a] for a in ordered], [strides[a] for a in ordered])
        count = math.prod(shape[axis] for axis in axes)
        source = (
            f"{element_access(element_type)}#define LEAST {least}\n#define MOST {most}\n"
            "__kernel void reduce(__global const stored_T* restrict x, __global stored_T* restrict y) {\n"
            "  const ulong i = get_global_id(0);\n  ulong base;\n"
            f"  {{ {index_code(outer, [outer_steps], ['a'])} base = a; }}\n"
            f"  T s = {start};\n  const float n = {count}.0f;\n{_top(node, count, inner, inner_steps)}"
            f"  for (ulong j = 0; j < {count}ul; ++j) {{\n    {index_code(inner, [inner_steps], ['a'], 'j')}\n"
            f"    const T v = load_T(x, base + a);\n    {step};\n  }}\n  store_T(y, i, {end});\n}}\n"
        )
        b.launch(
            source,
            "reduce",
            [b.input(node.input_value(0)), b.output(node.output(0))],
            (math.prod(b.shape(node.output(0))),),
        )


def _top(node: Node, count: int, lengths: Sequence[int], steps: Sequence[int]) -> str:
    """Statements that find the largest element for a LogSumExp, so that no power overflows."""
    if node.op_type != "ReduceLogSumExp":
        return ""
    return (
        f"  float top = -INFINITY;\n  for (ulong j = 0; j < {count}ul; ++j) {{\n"
        f"    {index_code(lengths, [steps], ['a'], 'j')}\n"
        "    top = fmax(top, load_T(x, base + a));\n  }\n  top = isfinite(top) ? top : 0.0f;\n"
    )


def _axes(node: Node, rank: int, b: PlanBuilder) -> set[int]:
    if not node.has_input(1):
        return set() if attribute(node, "noop_with_empty_axes") else set(range(rank))
    data = b.constant(node.input_value(1))
    assert data is not None
    axes = {int(axis) % rank for axis in data.reshape(-1)}
    return axes or (set() if attribute(node, "noop_with_empty_axes") else set(range(rank)))
