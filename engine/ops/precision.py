"""The precision of reference evaluation."""

from __future__ import annotations

import numpy as np

from engine.ops.tensors import Array


def widened(x: Array) -> Array:
    """`x` in the type of intermediate results: f32, or f64 for f64."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
