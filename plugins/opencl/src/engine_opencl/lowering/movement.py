"""Operators that move elements and compute nothing: views, strided copies, padding, joining."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import ElementType, Node, Output
from engine.lowering import Refusal, RefusalCause, check_constant, require_elements
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED, load_code, moved_c_type, moved_scalar, store_code, stored_c_type
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Buffer, PlanBuilder
from engine_opencl.source import collapsed, index_code, strides_of


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout")
class ViewLowering(OpLowering[OperatorSpec]):
    """The same bytes under another shape. A Dropout that is not in training mode is one."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if node.op_type == "Dropout" and node.has_input(2):
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is given, in which a Dropout draws random numbers")
        if node.op_type == "Dropout" and node.num_outputs > 1 and node.output(1).target_inputs:
            return Refusal(RefusalCause.ATTRIBUTE, "the mask of a Dropout is read")
        return check_types((node.input_value(0), node.output(0)), STORED) or _check_target(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        b.alias(node.output(0), node.input_value(0))


@lowers("Transpose")
class TransposeLowering(OpLowering[OperatorSpec]):
    """Axes in another order."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(0))
        order = node.attributes.get("perm") or list(reversed(range(len(shape))))
        steps = strides_of(shape)
        copy_strided(b, node.input_value(0), node.output(0), [steps[axis] for axis in order])


@lowers("Expand")
class ExpandLowering(OpLowering[OperatorSpec]):
    """Broadcasting."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or _check_target(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape, target = b.shape(node.input_value(0)), b.shape(node.output(0))
        own = [0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True)]
        copy_strided(b, node.input_value(0), node.output(0), [0] * (len(target) - len(shape)) + own)


def _check_target(node: Node) -> Refusal | None:
    """A refusal where only numbers that an inference computes tell the result's lengths."""
    is_told = node.op_type in ("Reshape", "Expand") and not node.output(0).shape.is_static
    return check_constant(node, 1) if is_told else None


@lowers("Slice")
class SliceLowering(OpLowering[OperatorSpec]):
    """Ranges along axes, forwards or backwards."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1, 2, 3, 4)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(0))
        starts, ends = (numbers_of(b, node.input_value(index)) for index in (1, 2))
        axes = numbers_of(b, node.input_value(3)) if node.has_input(3) else list(range(len(starts)))
        steps = numbers_of(b, node.input_value(4)) if node.has_input(4) else [1] * len(starts)
        strides, offset = list(strides_of(shape)), 0
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            axis %= len(shape)
            first = range(shape[axis])[slice(start, _end(end, shape[axis], step), step)]
            offset += (first.start if len(first) else 0) * strides[axis]
            strides[axis] *= step
        copy_strided(b, node.input_value(0), node.output(0), strides, offset)


@lowers("Split")
class SplitLowering(OpLowering[OperatorSpec]):
    """Consecutive ranges along one axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(0))
        axis = int(attribute(node, "axis")) % len(shape)
        strides, offset = strides_of(shape), 0
        for output in node.outputs:
            copy_strided(b, node.input_value(0), output, strides, offset * strides[axis])
            offset += b.shape(output)[axis]


@lowers("Concat")
class ConcatLowering(OpLowering[OperatorSpec]):
    """Tensors one after the other along an axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        target = b.shape(node.output(0))
        axis = int(attribute(node, "axis")) % len(target)
        steps, offset = strides_of(target), 0
        result = b.output(node.output(0))
        for value in node.input_values:
            assert value is not None
            shape = b.shape(value)
            strided_copy(b, value, b.input(value), result, shape, strides_of(shape), 0, steps, offset * steps[axis])
            offset += shape[axis]


@lowers("Pad")
class PadLowering(OpLowering[OperatorSpec]):
    """Borders of a constant, of the nearest elements, or of mirrored or repeated ones; negative ones cut off."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if attribute(node, "mode") not in ("constant", "edge", "reflect", "wrap"):
            return Refusal(RefusalCause.ATTRIBUTE, f"mode is {attribute(node, 'mode')}")
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1, 2, 3)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape, target = b.shape(node.input_value(0)), b.shape(node.output(0))
        pads = numbers_of(b, node.input_value(1))
        axes = numbers_of(b, node.input_value(3)) if node.has_input(3) else list(range(len(shape)))
        before, after = [0] * len(shape), [0] * len(shape)
        for position, axis in enumerate(axes):
            before[axis % len(shape)], after[axis % len(shape)] = pads[position], pads[position + len(axes)]
        element = moved_c_type(node.output(0).element_type)
        fill: object = 0
        if node.has_input(2):
            data = b.constant(node.input_value(2))
            assert data is not None
            fill = data.reshape(-1)[0]
        mode = str(attribute(node, "mode"))
        lines = ["ulong r = i;", "long at = 0;", "int inside = 1;"]
        steps = strides_of(shape)
        for axis in range(len(shape) - 1, -1, -1):
            # Borders repeat what negative pads leave of the axis: `kept` elements from `first` on.
            first, length = max(-before[axis], 0), max(target[axis], 1)
            kept = shape[axis] - first - max(-after[axis], 0)
            if mode != "constant":
                require_elements(node, [kept], f"the border of axis {axis}")
            lines.append(f"{{ long k = (long)(r % {length}ul) - {max(before[axis], 0)}; r /= {length}ul;")
            lines.append(_place(mode, kept))
            lines.append(f"at += (k + {first}) * {steps[axis]}; }}")
        body = "\n  ".join(lines)
        source = (
            f"__kernel void pad(__global const {element}* x, __global {element}* y, const {element} fill) {{\n"
            f"  const ulong i = get_global_id(0);\n  {body}\n  y[i] = inside ? x[at] : fill;\n}}\n"
        )
        typed = moved_scalar(node.output(0).element_type, fill)
        count = math.prod(target)
        b.launch(source, "pad", [b.input(node.input_value(0)), b.output(node.output(0)), typed], (count,))


def _place(mode: str, n: int) -> str:
    """Statements that bring `k` into an axis of length n, or clear `inside`."""
    if mode == "constant":
        return f"inside &= k >= 0 && k < {n}; k = inside ? k : 0;"
    if mode == "edge":
        return f"k = k < 0 ? 0 : (k >= {n} ? {n - 1} : k);"
    if mode == "wrap":
        return f"k %= {max(n, 1)}; k = k < 0 ? k + {n} : k;"
    period = max(2 * (n - 1), 1)
    return f"k %= {period}; k = k < 0 ? k + {period} : k; k = k >= {n} ? {period} - k : k;"


def copy_strided(b: PlanBuilder, value: Output, result: Output, strides: Sequence[int], offset: int = 0) -> None:
    """Fill `result` in order from elements of `value` at an offset and along strides."""
    shape = b.shape(result)
    strided_copy(b, value, b.input(value), b.output(result), shape, strides, offset, strides_of(shape), 0)


def strided_copy(
    b: PlanBuilder,
    value: Output,
    source: Buffer,
    target: Buffer,
    shape: Sequence[int],
    read: Sequence[int],
    read_offset: int,
    written: Sequence[int],
    write_offset: int,
    *,
    stored: tuple[ElementType, ElementType] | None = None,
) -> None:
    """Copy elements between two strided ranges of one shape; `stored`: how they are and will be, where that differs."""
    lengths, (read, written) = collapsed(shape, read, written)
    index = index_code(lengths, [_modular(read), list(written)], ["a", "o"])
    source_c = target_c = moved_c_type(value.element_type)
    statement = "y[yo + (long)o] = x[xo + (long)a];"
    if stored is not None and stored[0] is not stored[1]:
        source_c, target_c = map(stored_c_type, stored)
        statement = store_code(stored[1], "y", "yo + (long)o", load_code(stored[0], "x", "xo + (long)a"))
    text = (
        f"__kernel void copy(__global const {source_c}* x, __global {target_c}* y, const long xo, const long yo) {{\n"
        f"  const ulong i = get_global_id(0);\n  {index}\n  {statement}\n}}\n"
    )
    b.launch(text, "copy", [source, target, np.int64(read_offset), np.int64(write_offset)], (math.prod(shape),))


def _modular(strides: Sequence[int]) -> list[int]:
    """Negative strides as what they are modulo 2^64, in which the kernel adds."""
    return [stride % 2**64 for stride in strides]


def _end(end: int, length: int, step: int) -> int | None:
    """An end of a Slice as Python has it: backwards, one before the first element is None."""
    return None if step < 0 and end < -length else end


def numbers_of(b: PlanBuilder, value: Output) -> list[int]:
    """The integers of a constant."""
    data = b.constant(value)
    assert data is not None, value
    return [int(each) for each in data.reshape(-1)]
