"""Inexact numbers for tests: the same for the same seed, everywhere."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def values(
    *shape: int, seed: int | str = 0, scale: float = 1.0, is_uniform: bool = False, dtype: Any = np.float32
) -> NDArray[Any]:
    """Random numbers of `shape`.

    Args:
        shape: the lengths.
        seed: equal seeds give equal numbers; a name is as good as a number.
        scale: the standard deviation, or where `is_uniform`, the largest absolute value.
        is_uniform: drawn uniformly, so that no number is larger than `scale`; else from a normal distribution.
        dtype: what they are converted to; integers lose their fractions.
    """
    random = np.random.default_rng(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed)
    drawn = random.uniform(-1, 1, shape) if is_uniform else random.standard_normal(shape)
    result: NDArray[Any] = (drawn * scale).astype(dtype)
    return result
