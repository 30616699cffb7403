"""Normalization: evaluation where `onnx.reference` is wrong, partial (stash_type) or has none.

Wrong are LRN, LogSoftmax, and LpNormalization of negative numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import ElementType
from engine.ops.precision import widened
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("Softmax")
def softmax(x: Array, *, axis: int) -> Array:
    """Powers of e, divided by their sum along an axis (ONNX Softmax-13)."""
    if not x.size:
        return x
    powers = np.exp(_below_largest(x, axis))
    shares: Array = powers / powers.sum(axis=axis, keepdims=True)
    return shares.astype(x.dtype)


@evaluates("LogSoftmax")
def log_softmax(x: Array, *, axis: int) -> Array:
    """The logarithm of Softmax, also where that vanishes (ONNX LogSoftmax-13)."""
    if not x.size:
        return x
    lower = _below_largest(x, axis)
    logarithms: Array = lower - np.log(np.exp(lower).sum(axis=axis, keepdims=True))
    return logarithms.astype(x.dtype)


def _below_largest(x: Array, axis: int) -> Array:
    wide = widened(x)
    lower: Array = wide - wide.max(axis=axis, keepdims=True)
    return lower


@evaluates("BatchNormalization")
def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    momentum: float,
    training_mode: int,
) -> Any:
    """Normalization by given statistics, or in training mode by those of the batch (ONNX BatchNormalization-15).

    In training mode the running mean and (population) variance follow, moved towards the batch's by 1 - momentum.
    """
    wide = widened(x)
    if not training_mode:
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


@evaluates("LpNormalization")
def lp_normalization(x: Array, *, axis: int, p: int) -> Array:
    """Division by the sum of magnitudes (p 1) or by the length along an axis; zeros stay (ONNX LpNormalization-22)."""
    wide = widened(x)
    powers = np.abs(wide) if p == 1 else wide * wide
    norm = powers.sum(axis=axis, keepdims=True)
    if p == 2:
        norm = np.sqrt(norm)
    scaled: Array = np.where(norm == 0, 0, wide / norm)
    return scaled.astype(x.dtype)


@evaluates("LRN")
def lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int) -> Array:
    """Division by a power of the squares summed over neighbouring channels (ONNX LRN-13)."""
    squares = widened(x) ** 2
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    channels = x.shape[1]
    total = np.zeros_like(squares)
    for offset in range(-before, after + 1):
        low, high = max(0, -offset), min(channels, channels - offset)
        if low < high:
            total[:, low:high] += squares[:, low + offset : high + offset]
    return (x / (bias + alpha / size * total) ** beta).astype(x.dtype)


@evaluates("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float) -> Array:
    """Each channel of each sample to zero mean and unit variance, scale, bias (ONNX InstanceNormalization-22)."""
    normal = _standardized(widened(x), tuple(range(2, x.ndim)), epsilon)[0]
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * widened(scale).reshape(channels) + widened(bias).reshape(channels)).astype(x.dtype)


@evaluates("GroupNormalization")
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float, stash_type: int
) -> Array:
    """Each group of channels to zero mean and unit variance, then scale and bias a channel (ONNX
    GroupNormalization-21)."""
    if x.shape[1] % num_groups:
        raise ModelError(f"num_groups {num_groups} does not divide the {x.shape[1]} channels")
    if not x.size:
        return np.empty_like(x)  # groups of nothing have no mean
    groups = x.reshape(x.shape[0], num_groups, -1).astype(_stash(stash_type))
    normal = _standardized(groups, (2,), epsilon)[0].astype(x.dtype).reshape(x.shape)
    channels = (-1, *(1,) * (x.ndim - 2))
    return (normal * scale.reshape(channels) + bias.reshape(channels)).astype(x.dtype)


@evaluates("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array, Array]:
    """The axes from `axis` on to zero mean and unit variance (ONNX LayerNormalization-17); the mean and the
    inverse standard deviation follow in the stash type."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    normal, mean, inverse = _standardized(x.astype(_stash(stash_type)), axes, epsilon)
    result = normal.astype(x.dtype) * scale
    if bias is not None:
        result = result + bias
    return result.astype(x.dtype), mean, inverse


@evaluates("RMSNormalization")
def rms_normalization(x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: int) -> Array:
    """The axes from `axis` on divided by their root mean square (ONNX RMSNormalization-23)."""
    wide = x.astype(_stash(stash_type))
    square = np.mean(wide * wide, axis=tuple(range(axis % x.ndim, x.ndim)), keepdims=True)
    normal = wide / np.sqrt(square + wide.dtype.type(epsilon))
    result: Array = normal.astype(x.dtype) * scale
    return result.astype(scale.dtype)


@evaluates("MeanVarianceNormalization")
def mean_variance_normalization(x: Array, *, axes: Sequence[int]) -> Array:
    """`axes` to zero mean and unit variance; 1e-9 is added to the deviation (ONNX MeanVarianceNormalization-13)."""
    wide = widened(x)
    mean = wide.mean(axis=tuple(axes), keepdims=True)
    # The specification's E[x^2] - E[x]^2, in a form that does not cancel.
    deviation = np.sqrt(((wide - mean) ** 2).mean(axis=tuple(axes), keepdims=True))
    result: Array = (wide - mean) / (deviation + wide.dtype.type(1e-9))
    return result.astype(x.dtype)


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    mean: Array = x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    centered = x - mean
    variance = (centered * centered).mean(axis=axes, keepdims=True, dtype=x.dtype)
    inverse: Array = (1 / np.sqrt(variance + x.dtype.type(epsilon))).astype(x.dtype)
    normal: Array = centered * inverse
    return normal, mean, inverse


def _stash(stash_type: int) -> np.dtype[Any]:
    return ElementType.from_onnx(stash_type).numpy
