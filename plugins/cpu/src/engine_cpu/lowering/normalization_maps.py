"""Normalizations of maps [N, C, ...], plain or blocked: over channels, groups of channels, single channels, windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Output
from engine.lowering import Refusal, RefusalCause, check_constant, check_min_rank, check_stash_type, first_refusal
from engine.native import Attribute
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.channel_normalization import ChannelNormalizationSpec
from engine.ops.internal.scale_shift import ScaleShiftSpec
from engine.ops.normalization import (
    BatchNormalizationSpec,
    GroupNormalizationSpec,
    LrnSpec,
    MeanVarianceNormalizationSpec,
    scale_and_shift,
)
from engine.ops.spec import OperatorSpec, SpecT
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.registry import OpLowering, given_inputs, lowers
from engine_cpu.segment import SegmentBuilder


class MapLowering(OpLowering[SpecT]):
    """Base: input 0 and output 0 are maps of the same layout, other inputs are plain vectors."""

    layouts_of_maps: Sequence[Layout] = (Layout.PLAIN, Layout.BLOCKED)

    def check(self, spec: SpecT) -> Refusal | None:
        return first_refusal(check_f32(spec.node), check_min_rank(spec.node.input_value(0), 2))

    def layouts(self, spec: SpecT) -> Sequence[LayoutOption]:
        node = spec.node
        vectors = (Layout.PLAIN,) * (node.num_inputs - 1)
        more = (Layout.PLAIN,) * (node.num_outputs - 1)
        layouts = self.layouts_of_maps if len(node.output(0).shape) > 2 else (Layout.PLAIN,)
        return tuple(
            LayoutOption((layout, *vectors), (layout, *more), precision="bf16" if layout.is_bf16 else "")
            for layout in layouts
        )


def _step(
    spec: OperatorSpec,
    b: SegmentBuilder,
    kernel: str,
    vectors: Sequence[int],
    attributes: Mapping[str, Attribute],
    *,
    in_place: bool = True,
) -> None:
    """A step over the map of input 0, in the chosen layout."""
    x = spec.node.input_value(0)
    layout = b.option(spec.node).inputs[0]
    batch, channels, *sides = b.shape(x)
    source = b.input(x, layout)
    target = b.output(spec.output(), layout, in_place_of=x if in_place else None)
    sizes = {"batch": batch, "channels": channels, "pixels": math.prod(sides), "blocked": int(layout.is_blocked)}
    b.step(spec.node, kernel, [source, *vectors], [target], **sizes, **attributes)


@lowers("ChannelNormalization", domain=INTERNAL_DOMAIN, spec=ChannelNormalizationSpec)
class ChannelNormalizationLowering(MapLowering[ChannelNormalizationSpec]):
    """Layer normalization over the channels, axis 1 of [N, C, ...]."""

    def check(self, spec: ChannelNormalizationSpec) -> Refusal | None:
        return first_refusal(super().check(spec), check_stash_type(spec.stash_type))

    def lower(self, spec: ChannelNormalizationSpec, b: SegmentBuilder) -> None:
        vectors = [b.input(value) for value in given_inputs(spec.node)[1:]]
        numbers = {"epsilon": spec.epsilon, "scale": 1, "bias": int(spec.node.has_input(2))}
        _step(spec, b, "channel_norm_f32", vectors, numbers)


@lowers("InstanceNormalization", "GroupNormalization", spec=GroupNormalizationSpec)
class GroupNormalizationLowering(MapLowering[GroupNormalizationSpec]):
    """Groups of channels (of one channel for InstanceNormalization), with scale and bias per channel."""

    def check(self, spec: GroupNormalizationSpec) -> Refusal | None:
        return super().check(spec) or check_stash_type(spec.stash_type) or _check_channels(spec)

    def lower(self, spec: GroupNormalizationSpec, b: SegmentBuilder) -> None:
        vectors = [b.input(spec.node.input_value(1)), b.input(spec.node.input_value(2))]
        groups = max(1, spec.at(spec.input_shapes()).groups)
        _step(spec, b, "group_norm_f32", vectors, {"groups": groups, "epsilon": spec.epsilon, "scale": 1, "bias": 1})


def _check_channels(spec: GroupNormalizationSpec) -> Refusal | None:
    value = spec.node.input_value(0)
    if value.shape[1] == 0:
        return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}; expected 1 channel or more")
    return None


@lowers("MeanVarianceNormalization", spec=MeanVarianceNormalizationSpec)
class MeanVarianceNormalizationLowering(MapLowering[MeanVarianceNormalizationSpec]):
    """Over channels, over all but channels with or without the batch, or over trailing axes."""

    def check(self, spec: MeanVarianceNormalizationSpec) -> Refusal | None:
        refusal = first_refusal(check_f32(spec.node), check_min_rank(spec.node.input_value(0), 1))
        if refusal is not None or self._kind(spec) is not None:
            return refusal
        expected = "expected [1], all but 1, all but 0 and 1, or trailing axes"
        return Refusal(RefusalCause.ATTRIBUTE, f"axes are {list(spec.axes)}; {expected}")

    def layouts(self, spec: MeanVarianceNormalizationSpec) -> Sequence[LayoutOption]:
        if self._kind(spec) == "rows":
            return OpLowering.layouts(self, spec)
        return super().layouts(spec)

    def lower(self, spec: MeanVarianceNormalizationSpec, b: SegmentBuilder) -> None:
        kind, x = self._kind(spec), spec.node.input_value(0)
        shape = b.shape(x)
        numbers: dict[str, Attribute] = {"epsilon": 0.0, "deviation_epsilon": spec.ADDED}
        if kind == "rows":
            first = len(shape) - len(spec.axes)
            sizes = {"rows": math.prod(shape[:first]), "columns": math.prod(shape[first:])}
            source, target = b.input(x), b.output(spec.output(), in_place_of=x)
            b.step(spec.node, "layer_norm_f32", [source], [target], **sizes, **numbers)
        elif kind == "channels":
            _step(spec, b, "channel_norm_f32", [], numbers)
        else:
            groups = {"groups": max(1, shape[1]), "spans_batch": int(kind == "batch")}
            _step(spec, b, "group_norm_f32", [], groups | numbers)

    @staticmethod
    def _kind(spec: MeanVarianceNormalizationSpec) -> str | None:
        rank, axes = len(spec.node.input_value(0).shape), list(spec.axes)
        if axes == [0, *range(2, rank)] and rank >= 2:
            return "batch"
        if axes == list(range(2, rank)) and rank > 2:
            return "instances"
        if axes == list(range(rank - len(axes), rank)):
            return "rows"
        return "channels" if axes == [1] else None


@lowers("LRN", spec=LrnSpec)
class LocalResponseNormalizationLowering(MapLowering[LrnSpec]):
    """LRN: each element is divided by a power of the mean square over a window of channels."""

    def lower(self, spec: LrnSpec, b: SegmentBuilder) -> None:
        numbers = {"size": spec.size, "alpha": spec.alpha, "beta": spec.beta, "bias": spec.bias}
        _step(spec, b, "lrn_f32", [], numbers, in_place=False)


_LAYOUTS_OF_FACTORS = (Layout.PLAIN, Layout.BLOCKED, Layout.BLOCKED_BF16)


@lowers("BatchNormalization", spec=BatchNormalizationSpec)
class BatchNormalizationLowering(MapLowering[BatchNormalizationSpec]):
    """A factor and an offset per channel, computed from the four constants at compile time."""

    layouts_of_maps = _LAYOUTS_OF_FACTORS

    def check(self, spec: BatchNormalizationSpec) -> Refusal | None:
        if spec.training_mode:
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is 1; kernels normalize with given statistics")
        refusal = first_refusal(super().check(spec), check_constant(spec.node, 1, 2, 3, 4))
        if refusal is not None:
            return refusal
        sources = [source.node for source in spec.node.input_values[1:] if source is not None]
        given = [source.data for source in sources if isinstance(source, Constant)]
        if scale_and_shift(given, spec.epsilon, np.float32) is None:
            return Refusal(RefusalCause.CONSTANT, "the factor or the offset of a channel is infinite")
        return None

    def lower(self, spec: BatchNormalizationSpec, b: SegmentBuilder) -> None:
        parameters, epsilon = [spec.node.input_value(i) for i in range(1, 5)], spec.epsilon

        def fold(index: int) -> int:
            recipe = f"batch normalization {index} {epsilon!r}"
            return b.weights(parameters, recipe, lambda: _folded(b, parameters, epsilon)[index])

        _step(spec, b, "scale_shift_f32", [fold(0), fold(1)], _element(spec, b))


@lowers("ScaleShift", domain=INTERNAL_DOMAIN, spec=ScaleShiftSpec)
class ScaleShiftLowering(MapLowering[ScaleShiftSpec]):
    """The same with given factors and offsets, and an activation."""

    layouts_of_maps = _LAYOUTS_OF_FACTORS

    def lower(self, spec: ScaleShiftSpec, b: SegmentBuilder) -> None:
        vectors = [b.input(spec.node.input_value(1)), b.input(spec.node.input_value(2))]
        attributes = {**_element(spec, b), **activation_attributes(spec.activation)}
        _step(spec, b, "scale_shift_f32", vectors, attributes)


def _element(spec: OperatorSpec, b: SegmentBuilder) -> dict[str, Attribute]:
    return {"bf16": int(b.option(spec.node).inputs[0].is_bf16)}


def _folded(b: SegmentBuilder, parameters: Sequence[Output], epsilon: float) -> list[np.ndarray[Any, np.dtype[Any]]]:
    folded = scale_and_shift([b.value(value) for value in parameters], epsilon, np.float32)
    assert folded is not None
    return [each.astype(np.float32) for each in folded]
