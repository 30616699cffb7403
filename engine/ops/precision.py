"""The precision of reference evaluation: f32 for narrower floats, f64 for f64."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ops.tensors import Array


def widened(x: Array) -> Array:
    """`x` in the type of intermediate results: f32, or f64 for f64."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def rounded_to_odd(x: Array) -> Array:
    """Numbers in f32; rounding them further to 22 digits or less gives the nearest ones to `x`.

    ml_dtypes rounds f64 and integers to f32 first, and a number next to a tie of its type may become that tie.
    Here the last digit of what f32 cannot hold is 1 instead, so that no tie arises (Boldo and Melquiond, 2008).
    """
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        size = np.where(x < 0, -x, x).view(np.uint64)  # -2^63 is its own complement
        high = size & ~np.uint64(0xFFF)
        high |= ((size != high) & (size >> np.uint64(53) != 0)).astype(np.uint64) << np.uint64(12)
        exact = np.where(size >> np.uint64(53) != 0, high, size).astype(np.float64)
        return rounded_to_odd(np.where(x < 0, -exact, exact))
    if x.dtype.kind not in "iuf" or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(np.float32)
    wide = np.ascontiguousarray(x, np.float64).reshape(x.shape)
    near: Array = wide.astype(np.float32)
    bits, back = near.view(np.uint32), near.astype(np.float64)
    bits -= np.abs(back) > np.abs(wide)
    bits |= (back != wide) & ~np.isnan(wide)
    return near


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
