"""Operators with random results. With a seed, every evaluation gives the same values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import ElementType, Node
from engine.ops.registry import evaluates
from engine.ops.spec import OperatorSpec, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

declare("RandomNormal", "RandomUniform", "Multinomial", random=True, inflates=True)
declare("Bernoulli", "RandomNormalLike", "RandomUniformLike", random=True)


@specifies("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSpec(OperatorSpec):
    """Random values; None as the seed gives other ones in each inference."""

    seed: float | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["seed"] is not None and not math.isfinite(given["seed"]):
            refuse(node, "seed", given["seed"], "a finite number")


@evaluates("RandomNormal")
def random_normal(*, shape: Sequence[int], dtype: int, mean: float, scale: float, seed: float | None) -> Array:
    """Normally distributed values; other ones in each inference if `seed` is None (ONNX RandomNormal-22)."""
    return _normal(shape, _dtype(dtype), mean, scale, seed)


@evaluates("RandomNormalLike")
def random_normal_like(x: Array, *, dtype: int | None, mean: float, scale: float, seed: float | None) -> Array:
    """Normally distributed values of the shape, and by default the type, of x (ONNX RandomNormalLike-22)."""
    return _normal(x.shape, _dtype(dtype, x), mean, scale, seed)


@evaluates("RandomUniform")
def random_uniform(*, shape: Sequence[int], dtype: int, low: float, high: float, seed: float | None) -> Array:
    """Values evenly distributed from `low` to `high`; see `random_normal` (ONNX RandomUniform-22)."""
    return _uniform(shape, _dtype(dtype), low, high, seed)


@evaluates("RandomUniformLike")
def random_uniform_like(x: Array, *, dtype: int | None, low: float, high: float, seed: float | None) -> Array:
    """Uniformly distributed values of the shape, and by default the type, of x (ONNX RandomUniformLike-22)."""
    return _uniform(x.shape, _dtype(dtype, x), low, high, seed)


@evaluates("Bernoulli")
def bernoulli(x: Array, *, dtype: int | None, seed: float | None) -> Array:
    """1 with probability x, otherwise 0 (ONNX Bernoulli-22)."""
    return (_state(seed).uniform(size=x.shape) < x.astype(np.float64)).astype(_dtype(dtype, x))


@evaluates("Multinomial")
def multinomial(x: Array, *, dtype: int, sample_size: int, seed: float | None) -> Array:
    """`sample_size` classes per row, sampled by unnormalized log-probabilities x [N, classes] (ONNX Multinomial-22)."""
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1)
    draws = _state(seed).uniform(size=(x.shape[0], sample_size)) * edges[:, -1:]
    classes: Array = (draws[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
    return classes.astype(_dtype(dtype))


@evaluates("Dropout")
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None
) -> tuple[Array, Array]:
    """x, or in training mode x with a fraction `ratio` set to 0 and the rest scaled up (ONNX Dropout-22); and the
    mask of the elements that are kept."""
    share = 0.5 if ratio is None else float(ratio)
    if training_mode is None or not bool(training_mode) or share == 0:
        return x, np.ones(x.shape, dtype=np.bool_)
    mask = _state(seed).uniform(size=x.shape) >= share
    return (x * (mask / (1.0 - share))).astype(x.dtype), mask


def _normal(shape: Sequence[int], dtype: np.dtype[Any], mean: float, scale: float, seed: float | None) -> Array:
    return (_state(seed).standard_normal(tuple(shape)) * scale + mean).astype(dtype)


def _uniform(shape: Sequence[int], dtype: np.dtype[Any], low: float, high: float, seed: float | None) -> Array:
    return _state(seed).uniform(low, high, tuple(shape)).astype(dtype)


def _state(seed: float | None) -> np.random.RandomState:
    """A generator whose stream numpy guarantees not to change, so that a seed gives the same values in all versions."""
    if seed is None:
        return np.random.RandomState()
    if seed >= 0 and seed == int(seed):
        return np.random.RandomState(int(seed) % 2**32)
    return np.random.RandomState(int(np.float32(seed).view(np.uint32)))


def _dtype(dtype: int | None, like: Array | None = None) -> np.dtype[Any]:
    if dtype is not None:
        return ElementType.from_onnx(dtype).numpy
    assert like is not None
    return like.dtype
