"""The precision of reference evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ops.tensors import Array


def widened(x: Array) -> Array:
    """`x` in the type of intermediate results: f32, or f64 for f64."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def truncated(x: Array, dtype: Any) -> Array:
    """Real numbers as integers of `dtype`, towards zero: the nearest there is for those out of range, 0 for NaN.

    Of types of 4 and 2 bits, they are the lowest bits of 32, as ONNX's node tests have them.
    """
    target = np.dtype(dtype)
    if target.isbuiltin != 1:
        return truncated(x, np.int32).astype(target)
    wide, limits = widened(x), np.iinfo(target)
    is_low, is_high = wide <= limits.min, wide >= limits.max  # a limit that the real type rounds up is out of range
    whole: Array = np.where(is_low | is_high | np.isnan(wide), 0, wide).astype(target)
    whole[is_low], whole[is_high] = limits.min, limits.max
    return whole
