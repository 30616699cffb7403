"""Normalization: specs, type rules, and evaluation where `onnx.reference` is wrong, partial (stash_type) or has none.

Wrong are LRN, and LpNormalization of negative numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import ElementType, Node, Output, PartialShape, TensorType, ValueType, bf16, f16, f32, f64
from engine.ops.axis_lengths import AxisLengths
from engine.ops.precision import widened
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import (
    OperatorSpec,
    check_min_rank,
    evaluates_with_spec,
    rank_of,
    refuse,
    resolved_axes,
    resolved_axis,
    specifies,
)
from engine.ops.tensors import Array

_STASH_TYPES: Final = {each.onnx: each for each in (f32, f16, f64, bf16)}


@specifies("LayerNormalization", "RMSNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class RowNormalizationSpec(OperatorSpec):
    """Normalization over all axes from one on.

    Attributes:
        axis: the first axis of those.
        epsilon: what is added to the variance, or to the mean square.
        stash_type: the type that the statistics are computed in.
    """

    axis: int
    epsilon: float
    stash_type: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        given["stash_type"] = stash_type(node, given["stash_type"])

    @property
    def is_centred(self) -> bool:
        """Whether the mean is subtracted."""
        return self.op_type == "LayerNormalization"

    @property
    def scale(self) -> Output:
        """What each normalized element is multiplied with."""
        return self.node.input_value(1)

    @property
    def bias(self) -> Output | None:
        """What is then added."""
        return self.input(2)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> tuple[int, tuple[int, ...]]:
        """How many rows are normalized, and the shape of a row."""
        shape = tuple(shapes[0] or ())
        return prod(shape[: self.axis]), shape[self.axis :]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLengths:
    """The lengths of [N, C, ...] whose channels are normalized in groups."""

    batch: int
    channels: int
    groups: int
    pixels: int

    @property
    def per_group(self) -> int:
        """The channels of a group."""
        return self.channels // max(self.groups, 1)


@specifies("GroupNormalization", "InstanceNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNormalizationSpec(OperatorSpec):
    """Normalization of [N, C, ...] over groups of channels, then scale and bias by channel.

    Attributes:
        epsilon: what is added to the variance.
        num_groups: how many groups the channels are divided into; None for InstanceNormalization: one for each channel.
        stash_type: the type that the statistics are computed in; None is that of X, f32 at least.
    """

    epsilon: float
    num_groups: int | None = None
    stash_type: ElementType | None = None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        if "num_groups" in given:
            check_min_rank(node, 0, 2)
            if given["num_groups"] < 1:
                refuse(node, "num_groups", given["num_groups"], "1 or more")
            given["stash_type"] = stash_type(node, given["stash_type"])

    def at(self, shapes: Sequence[Sequence[int] | None]) -> GroupLengths:
        """What the shapes say. Raises `OperatorSpecError` if the groups do not divide the channels."""
        batch, channels, *space = shapes[0] or ()
        groups = channels if self.num_groups is None else self.num_groups
        if groups and channels % groups:
            raise OperatorSpecError(f"{self.node}: num_groups {groups} does not divide the {channels} channels")
        return GroupLengths(batch=batch, channels=channels, groups=groups, pixels=prod(space))


@specifies("BatchNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormalizationSpec(OperatorSpec):
    """Normalization of [N, C, ...] by a mean and a variance of each channel.

    Attributes:
        epsilon: what is added to the variance.
        momentum: in training mode, how much of the running statistics is kept.
        training_mode: whether the statistics are those of the batch, not those given.
    """

    epsilon: float
    momentum: float
    training_mode: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        check_min_rank(node, 0, 1)
        given["training_mode"] = bool(given["training_mode"])


@specifies("LpNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class LpNormalizationSpec(OperatorSpec):
    """Division by the norm along an axis; `p` is 1 for the sum of magnitudes, 2 for the Euclidean length."""

    axis: int
    p: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        if given["p"] not in (1, 2):
            refuse(node, "p", given["p"], "1 or 2")

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AxisLengths:
        """The lengths around the axis."""
        return AxisLengths.of(shapes[0] or (), self.axis)


@specifies("LRN")
@dataclass(frozen=True, slots=True, kw_only=True)
class LrnSpec(OperatorSpec):
    """Division of [N, C, ...] by (bias + alpha / size * sum of squares)^beta over `size` neighbouring channels."""

    alpha: float
    beta: float
    bias: float
    size: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        check_min_rank(node, 0, 2)
        if given["size"] < 1:
            refuse(node, "size", given["size"], "1 or more")

    @property
    def window(self) -> tuple[int, int]:
        """How many channels before and after its own are summed."""
        before = (self.size - 1) // 2
        return before, self.size - 1 - before


@specifies("MeanVarianceNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanVarianceNormalizationSpec(OperatorSpec):
    """Normalization over `axes`, in ascending order where the rank is known."""

    ADDED = 1e-9
    """What is added to the deviation, as the operator is defined."""

    axes: tuple[int, ...]

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        given["axes"] = tuple(sorted(resolved_axes(node, given["axes"], rank_of(node, 0))))


def stash_type(node: Node, code: int) -> ElementType:
    """The element type that the attribute stash_type names. Raises `OperatorSpecError` for other types than floats."""
    if code not in _STASH_TYPES:
        allowed = ", ".join(f"{known} ({each.name})" for known, each in _STASH_TYPES.items())
        refuse(node, "stash_type", code, allowed)
    return _STASH_TYPES[code]


# -- types ------------------------------------------------------------------------------------------------


@infers("GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization")
def _infer_normalization(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    value_type = tensor_type(node, 0)
    if node.op_type == "GroupNormalization" and value_type.shape.rank.is_static:
        _check_groups(GroupNormalizationSpec.of(node), value_type)
    return (value_type,)


def _check_groups(spec: GroupNormalizationSpec, value_type: TensorType) -> None:
    node, channels, groups = spec.node, value_type.shape[1], spec.num_groups
    assert groups is not None
    if channels.is_static and channels.min % groups:
        fail(node, f"num_groups {groups} does not divide the {channels} channels of X")
    for index in (1, 2):
        shape = tensor_type(node, index).shape
        if not shape.compatible(PartialShape([channels])):
            fail(node, f"input {index} has shape {shape}; expected one value per channel, [{channels}]")


# -- evaluation -------------------------------------------------------------------------------------------


@evaluates_with_spec("BatchNormalization")
def batch_normalization(
    spec: BatchNormalizationSpec, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> Any:
    """Normalization by given statistics, or in training mode by those of the batch (ONNX BatchNormalization-15).

    In training mode the running mean and (population) variance follow, moved towards the batch's by 1 - momentum.
    """
    wide, epsilon, momentum = widened(x), spec.epsilon, spec.momentum
    if not spec.training_mode:
        return _normalized(wide, scale, bias, mean, variance, epsilon).astype(x.dtype)
    axes = (0, *range(2, x.ndim))
    batch_mean, batch_variance = wide.mean(axis=axes), wide.var(axis=axes)
    y = _normalized(wide, scale, bias, batch_mean, batch_variance, epsilon).astype(x.dtype)
    running_mean = (widened(mean) * momentum + batch_mean * (1 - momentum)).astype(mean.dtype)
    running_variance = (widened(variance) * momentum + batch_variance * (1 - momentum)).astype(variance.dtype)
    return y, running_mean, running_variance


def _normalized(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    channels = (-1, *(1,) * (x.ndim - 2))
    factor = widened(scale) / np.sqrt(widened(variance) + np.float32(epsilon))
    result: Array = (x - widened(mean).reshape(channels)) * factor.reshape(channels)
    result += widened(bias).reshape(channels)
    return result


@evaluates_with_spec("LpNormalization")
def lp_normalization(spec: LpNormalizationSpec, x: Array) -> Array:
    """Division by the sum of magnitudes (p 1) or by the length along an axis; zeros stay (ONNX LpNormalization-22)."""
    wide = widened(x)
    powers = np.abs(wide) if spec.p == 1 else wide * wide
    norm = powers.sum(axis=spec.axis, keepdims=True)
    if spec.p == 2:
        norm = np.sqrt(norm)
    scaled: Array = np.where(norm == 0, 0, wide / norm)
    return scaled.astype(x.dtype)


@evaluates_with_spec("LRN")
def lrn(spec: LrnSpec, x: Array) -> Array:
    """Division by a power of the squares summed over neighbouring channels (ONNX LRN-13)."""
    squares = widened(x) ** 2
    before, after = spec.window
    channels = x.shape[1]
    total = np.zeros_like(squares)
    for offset in range(-before, after + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            total[:, low:high] += squares[:, low + offset : high + offset]
    return (x / (spec.bias + spec.alpha / spec.size * total) ** spec.beta).astype(x.dtype)


@evaluates_with_spec("InstanceNormalization")
def instance_normalization(spec: GroupNormalizationSpec, x: Array, scale: Array, bias: Array) -> Array:
    """Each channel of each sample to zero mean and unit variance, scale, bias (ONNX InstanceNormalization-22)."""
    normal = _standardized(widened(x), tuple(range(2, x.ndim)), spec.epsilon)[0]
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * widened(scale).reshape(channels) + widened(bias).reshape(channels)).astype(x.dtype)


@evaluates_with_spec("GroupNormalization")
def group_normalization(spec: GroupNormalizationSpec, x: Array, scale: Array, bias: Array) -> Array:
    """Each group of channels to zero mean and unit variance, then scale and bias a channel (ONNX
    GroupNormalization-21)."""
    lengths = spec.at([x.shape])
    if not x.size:
        return np.empty_like(x)  # groups of nothing have no mean
    assert spec.stash_type is not None
    groups = x.reshape(lengths.batch, lengths.groups, -1).astype(spec.stash_type.numpy)
    normal = _standardized(groups, (2,), spec.epsilon)[0].astype(x.dtype).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * scale.reshape(channels) + bias.reshape(channels)).astype(x.dtype)


@evaluates_with_spec("LayerNormalization")
def layer_normalization(
    spec: RowNormalizationSpec, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """The axes from `axis` on to zero mean and unit variance (ONNX LayerNormalization-17); the mean and the
    inverse standard deviation follow in the stash type."""
    axes = tuple(range(spec.axis % x.ndim, x.ndim))
    normal, mean, inverse = _standardized(x.astype(spec.stash_type.numpy), axes, spec.epsilon)
    result = normal.astype(x.dtype) * scale
    if bias is not None:
        result = result + bias
    return result.astype(x.dtype), mean, inverse


@evaluates_with_spec("RMSNormalization")
def rms_normalization(spec: RowNormalizationSpec, x: Array, scale: Array) -> Array:
    """The axes from `axis` on divided by their root mean square (ONNX RMSNormalization-23)."""
    wide = x.astype(spec.stash_type.numpy)
    square = np.mean(wide * wide, axis=tuple(range(spec.axis % x.ndim, x.ndim)), keepdims=True)
    normal = wide / np.sqrt(square + wide.dtype.type(spec.epsilon))
    result: Array = normal.astype(x.dtype) * scale
    return result.astype(scale.dtype)


@evaluates_with_spec("MeanVarianceNormalization")
def mean_variance_normalization(spec: MeanVarianceNormalizationSpec, x: Array) -> Array:
    """`axes` to zero mean and unit variance; 1e-9 is added to the deviation (ONNX MeanVarianceNormalization-13)."""
    wide = widened(x)
    mean = wide.mean(axis=spec.axes, keepdims=True)
    # The specification's E[x^2] - E[x]^2, in a form that does not cancel.
    deviation = np.sqrt(((wide - mean) ** 2).mean(axis=spec.axes, keepdims=True))
    result: Array = (wide - mean) / (deviation + wide.dtype.type(spec.ADDED))
    return result.astype(x.dtype)


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    mean: Array = x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    centered = x - mean
    variance = (centered * centered).mean(axis=axes, keepdims=True, dtype=x.dtype)
    inverse: Array = (1 / np.sqrt(variance + x.dtype.type(epsilon))).astype(x.dtype)
    normal: Array = centered * inverse
    return normal, mean, inverse
