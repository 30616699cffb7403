"""Whether weights that passes multiply by others stay within the range of their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.ir import Constant, ElementType, bf16, f32
from engine.ops.tensors import Array

_MAX_MAGNITUDE: Final = 2.0**100
_MIN_MAGNITUDE: Final = 2.0**-100
_VISIBLE: Final = 2.0**-60
"""Beside a channel or a shift of this size, the loss in numbers below `_MIN_MAGNITUDE` does not show: channels that
training has switched off are usual."""
_WIDE: Final = frozenset({f32, bf16})
"""Types whose numbers reach from 2^-126 to 2^128. The range of f16 is too small for a margin."""


def fits(element_type: ElementType, largest: Array, shift: Array | None = None) -> bool:
    """Whether weights neither overflow nor lose digits as denormal numbers.

    Args:
        element_type: the type in which they are stored; of types other than f32 and bf16, only that they are finite
            is asked.
        largest: [channels], the largest magnitudes of the weights of each channel, computed in f64.
        shift: [channels], the summand of the results of each channel.
    """
    if element_type not in _WIDE:
        limit = float(np.finfo(element_type.numpy).max) if element_type.byte_size(1) > 1 else np.inf
        return bool(np.all(largest <= limit)) and (shift is None or bool(np.isfinite(shift).all()))
    shifts = np.zeros(1) if shift is None else np.abs(shift)
    if not (np.all(largest <= _MAX_MAGNITUDE) and np.all(shifts <= _MAX_MAGNITUDE)):
        return False
    is_small = (largest > 0) & (largest < _MIN_MAGNITUDE)
    return not is_small.any() or bool(max(largest.max(), shifts.max()) >= _VISIBLE)


def magnitudes(weights: Constant, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """The largest magnitudes along axes of weights in this shape, in f64; the data is in memory only meanwhile."""
    was_loaded = weights.is_loaded
    data = weights.data.reshape(shape)
    kept = tuple(axes)
    largest: Array = np.maximum(data.max(axis=kept).astype(np.float64), -data.min(axis=kept).astype(np.float64))
    if not was_loaded:
        weights.release()
    return largest
