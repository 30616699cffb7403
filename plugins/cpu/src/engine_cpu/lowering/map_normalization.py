"""Normalizations of maps [N, C, ...], plain or blocked: over channels, groups of channels, single channels, windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause, check_constant, first_refusal
from engine.native import Attribute
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.scale_shift import ScaleShiftSpec
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.normalization import check_stash_type
from engine_cpu.lowering.registry import OpLowering, given_inputs, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder


class MapLowering(OpLowering[OperatorSpec]):
    """What these have in common: input 0 and output 0 are maps of one layout, other inputs are plain vectors."""

    layouts_of_maps: Sequence[Layout] = (Layout.PLAIN, Layout.BLOCKED)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_f32(node), _check_rank(node, 2))

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        vectors = (Layout.PLAIN,) * (node.num_inputs - 1)
        more = (Layout.PLAIN,) * (node.num_outputs - 1)
        layouts = self.layouts_of_maps if len(node.output(0).shape) > 2 else (Layout.PLAIN,)
        return tuple(
            LayoutOption((layout, *vectors), (layout, *more), precision="bf16" if layout.is_bf16 else "")
            for layout in layouts
        )


def _step(
    node: Node,
    b: SegmentBuilder,
    kernel: str,
    vectors: Sequence[int],
    attributes: Mapping[str, Attribute],
    *,
    in_place: bool = True,
) -> None:
    """A step over the map of input 0, in the layout that was chosen."""
    x, y = node.input_value(0), node.output(0)
    layout = b.option(node).inputs[0]
    batch, channels, *sides = b.shape(x)
    source = b.input(x, layout)
    target = b.output(y, layout, in_place_of=x if in_place else None)
    sizes = {"batch": batch, "channels": channels, "pixels": math.prod(sides), "blocked": int(layout.is_blocked)}
    b.step(node, kernel, [source, *vectors], [target], **sizes, **attributes)


def _check_rank(node: Node, least: int) -> Refusal | None:
    shape = node.input_value(0).shape
    return (
        None
        if len(shape) >= least
        else Refusal(RefusalCause.SHAPE, f"the rank is {len(shape)}; expected {least} or more")
    )


@lowers("ChannelNormalization", domain=INTERNAL_DOMAIN)
class ChannelNormalizationLowering(MapLowering):
    """LayerNormalization over axis 1."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(super().check(spec), check_stash_type(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        vectors = [b.input(value) for value in given_inputs(node)[1:]]
        numbers = {"epsilon": float(attribute(node, "epsilon")), "scale": 1, "bias": int(node.has_input(2))}
        _step(node, b, "channel_norm_f32", vectors, numbers)


@lowers("InstanceNormalization")
class InstanceNormalizationLowering(MapLowering):
    """Groups of one channel."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(super().check(spec), _check_channels(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        _lower_groups(node, b, b.shape(node.input_value(0))[1])


@lowers("GroupNormalization")
class GroupNormalizationLowering(MapLowering):
    """Groups of channels, with scale and bias by channel."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(super().check(spec), check_stash_type(node), _check_channels(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        _lower_groups(node, b, int(attribute(node, "num_groups")))


def _check_channels(node: Node) -> Refusal | None:
    value = node.input_value(0)
    if value.shape.rank.is_static and len(value.shape.dims) > 1 and value.shape.dims[1] == 0:
        return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}; the kernels take 1 channel or more")
    return None


def _lower_groups(node: Node, b: SegmentBuilder, groups: int) -> None:
    vectors = [b.input(node.input_value(1)), b.input(node.input_value(2))]
    numbers = {"groups": max(1, groups), "epsilon": float(attribute(node, "epsilon")), "scale": 1, "bias": 1}
    _step(node, b, "group_norm_f32", vectors, numbers)


@lowers("MeanVarianceNormalization")
class MeanVarianceNormalizationLowering(MapLowering):
    """Over channels, over all but channels with or without the batch, or over trailing axes."""

    _ADDED = 1e-9
    """To the deviation, as the operator is defined."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        refusal = first_refusal(check_f32(node), _check_rank(node, 1))
        if refusal is not None or self._kind(node) is not None:
            return refusal
        axes = list(attribute(node, "axes"))
        return Refusal(
            RefusalCause.ATTRIBUTE, f"axes are {axes}; kernels have [1], all but 1, all but 0 and 1, or trailing ones"
        )

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        node = spec.node
        if self._kind(node) == "rows":
            return OpLowering.layouts(self, spec)
        return super().layouts(spec)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        kind = self._kind(node)
        x, y = node.input_value(0), node.output(0)
        shape = b.shape(x)
        numbers: dict[str, Attribute] = {"epsilon": 0.0, "deviation_epsilon": self._ADDED}
        if kind == "rows":
            rows = shape[: len(shape) - len(set(self._axes(node)))]
            sizes = {"rows": math.prod(rows), "columns": math.prod(shape[len(rows) :])}
            b.step(node, "layer_norm_f32", [b.input(x)], [b.output(y, in_place_of=x)], **sizes, **numbers)
        elif kind == "channels":
            _step(node, b, "channel_norm_f32", [], numbers)
        else:
            groups = {"groups": max(1, shape[1]), "spans_batch": int(kind == "batch")}
            _step(node, b, "group_norm_f32", [], groups | numbers)

    @classmethod
    def _kind(cls, node: Node) -> str | None:
        rank = len(node.input_value(0).shape)
        axes = cls._axes(node)
        if axes == [0, *range(2, rank)] and rank >= 2:
            return "batch"
        if axes == list(range(2, rank)) and rank > 2:
            return "instances"
        if axes == list(range(rank - len(axes), rank)):
            return "rows"
        return "channels" if axes == [1] else None

    @staticmethod
    def _axes(node: Node) -> list[int]:
        rank = len(node.input_value(0).shape)
        return sorted({int(axis) % rank for axis in attribute(node, "axes")})


@lowers("LRN")
class LocalResponseNormalizationLowering(MapLowering):
    """Over windows of channels."""

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        numbers = {name: float(attribute(node, name)) for name in ("alpha", "beta", "bias")}
        _step(node, b, "lrn_f32", [], {"size": int(attribute(node, "size")), **numbers}, in_place=False)


@lowers("BatchNormalization")
class BatchNormalizationLowering(MapLowering):
    """A factor and a summand for each channel, made of the four constants when the network is compiled."""

    layouts_of_maps = (Layout.PLAIN, Layout.BLOCKED, Layout.BLOCKED_BF16)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if attribute(node, "training_mode"):
            return Refusal(RefusalCause.ATTRIBUTE, "training_mode is 1; kernels normalize with given statistics")
        return first_refusal(super().check(spec), check_constant(node, 1, 2, 3, 4))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        parameters = [node.input_value(i) for i in range(1, 5)]
        epsilon = float(attribute(node, "epsilon"))

        def fold(index: int) -> int:
            recipe = f"batch normalization {index} {epsilon!r}"
            return b.weights(parameters, recipe, lambda: _folded(b, parameters, epsilon)[index])

        _step(node, b, "scale_shift_f32", [fold(0), fold(1)], _element(node, b))


@lowers("ScaleShift", domain=INTERNAL_DOMAIN, spec=ScaleShiftSpec)
class ScaleShiftLowering(MapLowering):
    """The same with the factors and summands given, and an activation."""

    layouts_of_maps = BatchNormalizationLowering.layouts_of_maps

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        assert isinstance(spec, ScaleShiftSpec)
        node = spec.node
        vectors = [b.input(node.input_value(1)), b.input(node.input_value(2))]
        _step(node, b, "scale_shift_f32", vectors, {**_element(node, b), **activation_attributes(spec.activation)})


def _element(node: Node, b: SegmentBuilder) -> dict[str, Attribute]:
    return {"bf16": int(b.option(node).inputs[0].is_bf16)}


def _folded(b: SegmentBuilder, parameters: Sequence[Output], epsilon: float) -> list[np.ndarray[Any, np.dtype[Any]]]:
    scale, bias, mean, variance = (b.value(value).astype(np.float64) for value in parameters)
    with np.errstate(all="ignore"):  # statistics that are no numbers make results that are none
        factor = scale / np.sqrt(variance + epsilon)
        return [each.astype(np.float32) for each in (factor, bias - mean * factor)]
