"""Normalizations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir import Node, Output
from engine.ir.element_type import f32
from engine.lowering import Refusal, RefusalCause, is_left_out
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import stored_type
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of, spans
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import kernel_source, strides_of


@lowers("LayerNormalization", "RMSNormalization")
class RowNormLowering(OpLowering[OperatorSpec]):
    """Over all axes from one on."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((*node.input_values, node.output(0))) or check_types(node.outputs[1:], {f32})

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(0))
        axis = int(attribute(node, "axis")) % len(shape)
        length = math.prod(shape[axis:])
        values = [node.input_value(i) for i in range(node.num_inputs) if node.has_input(i)]
        rank = len(shape) - axis
        # A scale or shift that differs between rows is one for each element of x.
        is_wide = any(math.prod(b.shape(value)[:-rank]) != 1 for value in values[1:])
        whole = shape if is_wide else shape[axis:]
        is_even = all(math.prod(b.shape(value)) == math.prod(whole) for value in values[1:])
        buffers = [b.input(values[0])]
        buffers += [b.input(value) if is_even else _expanded(value, whole, b) for value in values[1:]]
        is_centred, channel = node.op_type == "LayerNormalization", "(first + k)" if is_wide else "k"
        _launch(node, b, buffers, math.prod(shape[:axis]), length, channel, is_centred=is_centred)


@lowers("InstanceNormalization", "GroupNormalization")
class MapNormLowering(OpLowering[OperatorSpec]):
    """Over each channel's map, or over the maps of a group of channels, which lie together."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        n, c, *space = b.shape(node.input_value(0))
        groups = c if node.op_type == "InstanceNormalization" else int(attribute(node, "num_groups"))
        pixels, per_group = math.prod(space), c // groups
        channel = f"(row % {groups} * {per_group}" + (f" + k / {pixels})" if per_group > 1 else ")")
        buffers = [b.input(node.input_value(index)) for index in range(3)]
        _launch(node, b, buffers, n * groups, per_group * pixels, channel)


def _launch(
    node: Node,
    b: PlanBuilder,
    buffers: Sequence[Buffer],
    count: int,
    length: int,
    channel: str,
    *,
    is_centred: bool = True,
) -> None:
    """Launch the kernel for rows of x, with scale and perhaps shift, whose element `channel` belongs to element k.

    Each row's mean and the inverse of its deviation are stored, too, where anything reads them.
    """
    y = node.output(0)
    rows = rows_of(b.facts, count, length)
    read = any(each.target_inputs for each in node.outputs[1:])
    statistics = [b.temporary(4 * count) if is_left_out(each) else b.output(each) for each in node.outputs[1:] if read]
    source = rows.source(
        "row_norm", y.element_type, MEAN=int(is_centred), SHIFT=int(len(buffers) > 2), CHANNEL=channel,
        STATISTICS=len(statistics),
    )  # fmt: skip
    arguments: list[Given] = [*buffers, b.output(y), *statistics, float(attribute(node, "epsilon"))]
    launch_rows(b, rows, source, "row_norm", arguments, even_of_nothing=bool(statistics))


def _expanded(value: Output, shape: Sequence[int], b: PlanBuilder) -> Buffer:
    """A scale or shift, repeated to `shape`; axes that it has before those are of length 1."""
    own = ((1,) * len(shape) + b.shape(value))[-len(shape) :]
    read = [0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True)]
    target = b.temporary(math.prod(shape) * stored_type(value).itemsize)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


@lowers("LpNormalization")
class LpNormLowering(OpLowering[OperatorSpec]):
    """Rows along an axis, divided by the sum of what they hold or by their length; a row of zeros stays."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        outer, length, inner = spans(b.shape(x), int(attribute(node, "axis")))
        rows = rows_of(b.facts, outer * inner, length, inner)
        source = rows.source("lp_norm", y.element_type, P=int(attribute(node, "p")))
        launch_rows(b, rows, source, "lp_norm", [b.input(x), b.output(y)])


@lowers("BatchNormalization")
class BatchNormLowering(OpLowering[OperatorSpec]):
    """With statistics that are given."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if node.attributes.get("training_mode"):
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is on")
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        n, c, *space = b.shape(node.input_value(0))
        pixels = math.prod(space)
        buffers = [b.input(node.input_value(index)) for index in range(5)]
        arguments: list[Given] = [*buffers, b.output(node.output(0)), float(attribute(node, "epsilon"))]
        source = kernel_source("batch_norm", node.output(0).element_type, C=c, PIXELS=pixels)
        b.launch(source, "batch_norm", arguments, (pixels, c, n))
