"""Lowers the normalizations over rows, groups, channels and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir import Output
from engine.ir.element_type import f32
from engine.lowering import Refusal, RefusalCause, check_min_rank, check_stash_type, first_refusal, is_omitted
from engine.ops.normalization import (
    BatchNormalizationSpec,
    GroupNormalizationSpec,
    LpNormalizationSpec,
    LrnSpec,
    RowNormalizationSpec,
)
from engine_opencl.elements import stored_type
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import launch_rows, rows_of
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, strides_of


@lowers("LayerNormalization", "RMSNormalization", spec=RowNormalizationSpec)
class RowNormalizationLowering(OpLowering[RowNormalizationSpec]):
    """Normalization over all axes from `axis` on."""

    def check(self, spec: RowNormalizationSpec) -> Refusal | None:
        return first_refusal(
            check_types((*spec.node.input_values, spec.output())),
            check_types(spec.node.outputs[1:], {f32}),
            check_stash_type(spec.stash_type),
        )

    def lower(self, spec: RowNormalizationSpec, b: LaunchPlanBuilder) -> None:
        x = spec.node.input_value(0)
        shape = b.shape(x)
        rows, columns = spec.at(spec.input_shapes())
        parameters = [value for value in (spec.scale, spec.bias) if value is not None]
        # A scale or shift that differs between rows is expanded to all elements of x.
        is_wide = any(math.prod(b.shape(value)[: -len(columns)]) != 1 for value in parameters)
        whole = shape if is_wide else columns
        is_dense = all(math.prod(b.shape(value)) == math.prod(whole) for value in parameters)
        buffers = [b.input(x)]
        buffers += [b.input(value) if is_dense else _expanded(value, whole, b) for value in parameters]
        channel = "(first + k)" if is_wide else "k"
        _launch(spec, b, buffers, rows, math.prod(columns), channel, is_centred=spec.is_centred)


@lowers("InstanceNormalization", "GroupNormalization", spec=GroupNormalizationSpec)
class GroupNormalizationLowering(OpLowering[GroupNormalizationSpec]):
    """Normalization over each channel, or over groups of channels, which are contiguous."""

    def check(self, spec: GroupNormalizationSpec) -> Refusal | None:
        return first_refusal(
            check_types(spec.node.input_values),
            check_min_rank(spec.node.input_value(0), 2),
            check_stash_type(spec.stash_type),
        )

    def lower(self, spec: GroupNormalizationSpec, b: LaunchPlanBuilder) -> None:
        s = spec.at(spec.input_shapes())
        channel = f"(row % {s.groups} * {s.per_group}" + (f" + k / {s.pixels})" if s.per_group > 1 else ")")
        buffers = [b.input(spec.node.input_value(index)) for index in range(3)]
        _launch(spec, b, buffers, s.batch * s.groups, s.per_group * s.pixels, channel)


def _launch(
    spec: RowNormalizationSpec | GroupNormalizationSpec,
    b: LaunchPlanBuilder,
    buffers: Sequence[Buffer],
    count: int,
    length: int,
    channel: str,
    *,
    is_centred: bool = True,
) -> None:
    """Launch the kernel for rows of x, with scale and optional shift, indexed by `channel` for element k.

    Each row's mean and inverse standard deviation are also stored if they are used.
    """
    y, others = spec.output(), spec.node.outputs[1:]
    rows = rows_of(b.facts, count, length)
    is_read = any(each.target_inputs for each in others)
    statistics = [b.temporary(4 * count) if is_omitted(each) else b.output(each) for each in others if is_read]
    source = rows.source(
        "row_norm", y.element_type, MEAN=int(is_centred), SHIFT=int(len(buffers) > 2), CHANNEL=channel,
        STATISTICS=len(statistics),
    )  # fmt: skip
    arguments: list[Given] = [*buffers, b.output(y), *statistics, spec.epsilon]
    launch_rows(b, rows, source, "row_norm", arguments, even_of_nothing=bool(statistics))


def _expanded(value: Output, shape: Sequence[int], b: LaunchPlanBuilder) -> Buffer:
    """A scale or shift, broadcast to `shape`; its extra leading axes have length 1."""
    own = ((1,) * len(shape) + b.shape(value))[-len(shape) :]
    read = [0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True)]
    target = b.temporary(math.prod(shape) * stored_type(value).itemsize)
    strided_copy(b, value, b.input(value), target, shape, read, 0, strides_of(shape), 0)
    return target


@lowers("LpNormalization", spec=LpNormalizationSpec)
class LpNormalizationLowering(OpLowering[LpNormalizationSpec]):
    """Rows along an axis, divided by their L1 or L2 norm; a zero row is unchanged."""

    def check(self, spec: LpNormalizationSpec) -> Refusal | None:
        return check_types(spec.node.input_values)

    def lower(self, spec: LpNormalizationSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        outer, length, inner = spec.at(spec.input_shapes())
        rows = rows_of(b.facts, outer * inner, length, inner)
        source = rows.source("lp_norm", y.element_type, P=spec.p)
        launch_rows(b, rows, source, "lp_norm", [b.input(x), b.output(y)])


@lowers("BatchNormalization", spec=BatchNormalizationSpec)
class BatchNormalizationLowering(OpLowering[BatchNormalizationSpec]):
    """Batch normalization with given statistics; training is refused."""

    def check(self, spec: BatchNormalizationSpec) -> Refusal | None:
        if spec.training_mode:
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is 1; kernels normalize with given statistics")
        return check_types(spec.node.input_values) or check_min_rank(spec.node.input_value(0), 2)

    def lower(self, spec: BatchNormalizationSpec, b: LaunchPlanBuilder) -> None:
        n, c, *space = b.shape(spec.node.input_value(0))
        pixels = math.prod(space)
        buffers = [b.input(spec.node.input_value(index)) for index in range(5)]
        source = kernel_source("batch_norm", spec.output().element_type, C=c, PIXELS=pixels)
        b.launch(source, "batch_norm", [*buffers, b.output(spec.output()), spec.epsilon], (pixels, c, n))


@lowers("LRN", spec=LrnSpec)
class LrnLowering(OpLowering[LrnSpec]):
    """LRN: each element is divided by a power of the mean square over a window of channels."""

    def check(self, spec: LrnSpec) -> Refusal | None:
        return check_types(spec.node.input_values)

    def lower(self, spec: LrnSpec, b: LaunchPlanBuilder) -> None:
        x, y, (before, after) = spec.node.input_value(0), spec.output(), spec.window
        n, c, *space = b.shape(x)
        pixels = math.prod(space)
        source = kernel_source("lrn", y.element_type, C=c, PIXELS=pixels, BEFORE=before, AFTER=after)
        arguments: list[Given] = [b.input(x), b.output(y), spec.alpha / spec.size, spec.beta, spec.bias]
        b.launch(source, "lrn", arguments, (pixels, c, n))
