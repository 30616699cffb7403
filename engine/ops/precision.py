"""The precision in which reference evaluation computes."""

from __future__ import annotations

import numpy as np

from engine.ops.tensors import Array


def widened(x: Array) -> Array:
    """`x` in the type in which sums and functions of it are computed: f32, or f64 for f64."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
