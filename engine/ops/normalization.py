"""Normalization: specs, type rules, and evaluation where `onnx.reference` is wrong, has none or ignores stash_type.

It is wrong for LRN, and for LpNormalization of negative numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, prod
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import ElementType, Node, Output, PartialShape, TensorType, ValueType, bf16, f16, f32, f64
from engine.ops.axes import Axes, AxisMapping, along, axis_names, declare_axes, maps_axes, rank_of_value
from engine.ops.axis_lengths import AxisLengths
from engine.ops.cost import CALL, lengths_of, more_time, size_of
from engine.ops.precision import widened
from engine.ops.registry import attribute, get_op, infers
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
from engine.ops.traits import declare
from engine.startup import dataclass

_STASH_TYPES: Final = {each.onnx: each for each in (f32, f16, f64, bf16)}


declare("BatchNormalization", "LayerNormalization", "RMSNormalization", accumulates=True, vectorized=True)
declare("GroupNormalization", "InstanceNormalization", "LRN", accumulates=True)
declare("LpNormalization", "MeanVarianceNormalization", accumulates=True)
declare_axes("InstanceNormalization", axes="N C ..., C, C -> N C ...'")
declare_axes("GroupNormalization", axes="N C ..., , -> N C' ...'")
declare_axes("LRN", axes="N C ... -> N C' ...")


@specifies("LayerNormalization", "RMSNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class RowNormalizationSpec(OperatorSpec):
    """Normalization over all axes from `axis` on.

    Attributes:
        axis: the first normalized axis.
        epsilon: added to the variance, or to the mean square.
        stash_type: the type in which the statistics are computed.
    """

    axis: int
    epsilon: float
    stash_type: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        given["stash_type"] = stash_type(node, given["stash_type"])
        _check_epsilon(node, given)

    @property
    def is_centred(self) -> bool:
        """Whether the mean is subtracted (LayerNormalization), or not (RMSNormalization)."""
        return self.op_type == "LayerNormalization"

    @property
    def scale(self) -> Output:
        """The factor of each normalized element."""
        return self.node.input_value(1)

    @property
    def bias(self) -> Output | None:
        """The summand after scaling, which broadcasts to the shape of X; None if omitted."""
        return self.input(2)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> tuple[int, tuple[int, ...]]:
        """The number of normalized rows, and the shape of a row."""
        shape = tuple(shapes[0] or ())
        return prod(shape[: self.axis]), shape[self.axis :]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLengths:
    """The lengths of [N, C, ...] for normalization by groups of channels."""

    batch: int
    channels: int
    groups: int
    pixels: int

    @property
    def per_group(self) -> int:
        """The number of channels per group."""
        return self.channels // max(self.groups, 1)


@specifies("GroupNormalization", "InstanceNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNormalizationSpec(OperatorSpec):
    """Normalization of [N, C, ...] over groups of channels, then scale and bias by channel.

    Attributes:
        epsilon: added to the variance.
        num_groups: the number of groups of channels; None for InstanceNormalization: one for each channel.
        stash_type: the type in which the statistics are computed; None means X's type, but at least f32.
    """

    epsilon: float
    num_groups: int | None = None
    stash_type: ElementType | None = None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_epsilon(node, given)
        if "num_groups" in given:
            check_min_rank(node, 0, 2)
            if given["num_groups"] < 1:
                refuse(node, "num_groups", given["num_groups"], "1 or more")
            given["stash_type"] = stash_type(node, given["stash_type"])

    def at(self, shapes: Sequence[Sequence[int] | None]) -> GroupLengths:
        """The lengths for these shapes. Raises `OperatorSpecError` if the groups do not divide the channels."""
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
        epsilon: added to the variance.
        momentum: in training mode, the weight of the old running statistics.
        training_mode: whether the statistics are computed from the batch instead of given.
    """

    epsilon: float
    momentum: float
    training_mode: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_min_rank(node, 0, 1)
        _check_epsilon(node, given)


def _check_epsilon(node: Node, given: dict[str, Any]) -> None:
    if not 0 <= given["epsilon"] < inf:
        refuse(node, "epsilon", given["epsilon"], "a finite number, 0 or more")


@specifies("LpNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class LpNormalizationSpec(OperatorSpec):
    """Division by the norm along an axis; `p` is 1 for the L1 norm, 2 for the L2 norm."""

    axis: int
    p: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        if given["p"] not in (1, 2):
            refuse(node, "p", given["p"], "1 or 2")

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AxisLengths:
        """The lengths before, along and after the normalized axis, for these input shapes."""
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
        check_min_rank(node, 0, 2)
        if given["size"] < 1:
            refuse(node, "size", given["size"], "1 or more")
        for name in ("alpha", "beta", "bias"):
            if not isfinite(given[name]):
                refuse(node, name, given[name], "a finite number")

    @property
    def window(self) -> tuple[int, int]:
        """The number of channels before and after the element's own that are summed."""
        before = (self.size - 1) // 2
        return before, self.size - 1 - before


@specifies("MeanVarianceNormalization")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanVarianceNormalizationSpec(OperatorSpec):
    """Normalization over `axes`, which are ascending if the rank is known."""

    ADDED = 1e-9
    """Added to the deviation, according to the operator's definition."""

    axes: tuple[int, ...]

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axes"] = tuple(sorted(resolved_axes(node, given["axes"], rank_of(node, 0))))


def stash_type(node: Node, code: int) -> ElementType:
    """The element type of the attribute stash_type. Raises `OperatorSpecError` unless it is floating-point."""
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
    """Normalization by given statistics, or in training mode by the batch's (ONNX BatchNormalization-15).

    In training mode, the updated running mean and (population) variance are also returned.
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


def scale_and_shift(parameters: Sequence[Array], epsilon: float, dtype: Any) -> tuple[Array, Array] | None:
    """A BatchNormalization by scale, bias, mean and variance as `x * scale + shift`, in f64.

    None if a number is infinite in `dtype`: of a variance of 0, the sum is then NaN where the difference of x and the
    mean, times the factor, is infinite.
    """
    scale, bias, mean, variance = (each.astype(np.float64) for each in parameters)
    with np.errstate(all="ignore"):  # NaN statistics give NaN results
        factor = scale / np.sqrt(variance + epsilon)
        shift = bias - mean * factor
    return None if is_infinite(factor, dtype) or is_infinite(shift, dtype) else (factor, shift)


def is_infinite(numbers: Array, dtype: Any) -> bool:
    """Whether any of the numbers is infinite in `dtype`."""
    with np.errstate(all="ignore"):
        return bool(np.isinf(numbers.astype(dtype)).any())


@evaluates_with_spec("LpNormalization")
def lp_normalization(spec: LpNormalizationSpec, x: Array) -> Array:
    """Division by the L1 or L2 norm along an axis; zeros do not change (ONNX LpNormalization-22)."""
    wide = widened(x)
    powers = np.abs(wide) if spec.p == 1 else wide * wide
    norm = powers.sum(axis=spec.axis, keepdims=True)
    if spec.p == 2:
        norm = np.sqrt(norm)
    scaled: Array = np.where(norm == 0, 0, wide / norm)
    return scaled.astype(x.dtype)


@evaluates_with_spec("LRN")
def lrn(spec: LrnSpec, x: Array) -> Array:
    """Division by a power of the sum of squares over neighbouring channels (ONNX LRN-13)."""
    squares = widened(x) ** 2
    before, after = spec.window
    channels = x.shape[1]
    total = np.zeros_like(squares)
    for offset in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            total[:, low:high] += squares[:, low + offset : high + offset]
    return (x / (spec.bias + spec.alpha / spec.size * total) ** spec.beta).astype(x.dtype)


@evaluates_with_spec("InstanceNormalization")
def instance_normalization(spec: GroupNormalizationSpec, x: Array, scale: Array, bias: Array) -> Array:
    """Normalization of each channel of each sample, then scale and bias (ONNX InstanceNormalization-22)."""
    normal = _standardized(widened(x), tuple(range(2, x.ndim)), spec.epsilon)[0]
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * widened(scale).reshape(channels) + widened(bias).reshape(channels)).astype(x.dtype)


@evaluates_with_spec("GroupNormalization")
def group_normalization(spec: GroupNormalizationSpec, x: Array, scale: Array, bias: Array) -> Array:
    """Normalization of each group of channels, then scale and bias per channel (ONNX GroupNormalization-21)."""
    lengths = spec.at([x.shape])
    if not x.size:
        return np.empty_like(x)  # empty groups have no mean
    assert spec.stash_type is not None
    groups = x.reshape(lengths.batch, lengths.groups, -1).astype(spec.stash_type.numpy)
    normal = _standardized(groups, (2,), spec.epsilon)[0].astype(x.dtype).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * scale.reshape(channels) + bias.reshape(channels)).astype(x.dtype)


@evaluates_with_spec("LayerNormalization")
def layer_normalization(
    spec: RowNormalizationSpec, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    """Normalization over the axes from `axis` on (ONNX LayerNormalization-17); also returns the mean and the
    inverse standard deviation in the stash type."""
    axes = tuple(range(spec.axis % x.ndim, x.ndim))
    normal, mean, inverse = _standardized(x.astype(spec.stash_type.numpy), axes, spec.epsilon)
    result = normal.astype(x.dtype) * scale
    if bias is not None:
        result = result + bias
    return result.astype(x.dtype), mean, inverse


@infers("RMSNormalization")
def _infer_rms_normalization(node: Node) -> Sequence[ValueType]:
    """The type of the scale; ONNX infers X's type."""
    check_inputs(node, get_op("RMSNormalization"))
    return (TensorType(tensor_type(node, 1).element_type, tensor_type(node, 0).shape),)


@evaluates_with_spec("RMSNormalization")
def rms_normalization(spec: RowNormalizationSpec, x: Array, scale: Array) -> Array:
    """Division by the root mean square over the axes from `axis` on (ONNX RMSNormalization-23)."""
    wide = x.astype(spec.stash_type.numpy)
    square = np.mean(wide * wide, axis=tuple(range(spec.axis % x.ndim, x.ndim)), keepdims=True)
    normal = wide / np.sqrt(square + wide.dtype.type(spec.epsilon))
    result: Array = normal.astype(x.dtype) * scale
    return result.astype(scale.dtype)


@evaluates_with_spec("MeanVarianceNormalization")
def mean_variance_normalization(spec: MeanVarianceNormalizationSpec, x: Array) -> Array:
    """Normalization over `axes`; 1e-9 is added to the deviation (ONNX MeanVarianceNormalization-13)."""
    wide = widened(x)
    mean = wide.mean(axis=spec.axes, keepdims=True)
    # Equal to the specification's E[x^2] - E[x]^2, but without cancellation.
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


@more_time("LRN")
def _time_of_channels(node: Node) -> float:
    """A pass over the elements for each of the neighbouring channels."""
    channels = sum(lengths_of(node.input_value(0))[1:2])
    return float(min(node.attributes["size"], 2 * channels)) * (CALL + 3 * size_of(node.input_value(0)))


# -- axes -------------------------------------------------------------------------------------------------


@maps_axes("BatchNormalization")
def _batch_axes(node: Node) -> Axes:
    if attribute(node, "training_mode"):
        return "N C ..., C, C, C, C -> N' C ...', C, C"
    return "N C ..., C, C, C, C -> N C ..."


@maps_axes("LayerNormalization", "RMSNormalization")
def _row_axes(node: Node) -> Axes:
    """Scale and bias broadcast to the data."""
    ranks = [None if value is None else rank_of_value(value) for value in node.input_values]
    if ranks[0] is None:
        return None
    found = along(node, range(RowNormalizationSpec.of(node).axis, ranks[0]))
    inputs = tuple(None if rank is None else axis_names(rank) for rank in ranks)
    return None if found is None else AxisMapping(inputs, found.outputs)


@maps_axes("LpNormalization")
def _norm_axes(node: Node) -> Axes:
    return along(node, [LpNormalizationSpec.of(node).axis])


@maps_axes("MeanVarianceNormalization")
def _mean_axes(node: Node) -> Axes:
    return along(node, MeanVarianceNormalizationSpec.of(node).axes)
