"""Reductions: evaluation where `onnx.reference` is wrong."""

from __future__ import annotations

import numpy as np

from engine.ops.precision import widened
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("ReduceLogSumExp")
def reduce_log_sum_exp(x: Array, axes: Array | None = None, *, keepdims: int, noop_with_empty_axes: int) -> Array:
    """The logarithm of summed powers of e, also of a scalar and of infinities (ONNX ReduceLogSumExp-28)."""
    wide = widened(x)
    given = () if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
    along = given or (() if noop_with_empty_axes else tuple(range(x.ndim)))
    largest = wide.max(axis=along, keepdims=True, initial=-np.inf)
    base = np.where(np.isinf(largest), wide.dtype.type(0), largest)
    powers = np.exp(wide - base).sum(axis=along, keepdims=True)
    result: Array = np.log(powers) + base
    return (result if keepdims else result.squeeze(axis=along)).astype(x.dtype)
