"""Random numbers for tests: the same for the same seed, on every platform."""

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
        shape: the shape of the array.
        seed: a number or a name; equal seeds give equal numbers.
        scale: the standard deviation or, if `is_uniform`, the largest absolute value.
        is_uniform: draw from a uniform distribution up to `scale`; otherwise from a normal distribution.
        dtype: the type of the result; conversion to integers truncates.
    """
    random = np.random.default_rng(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed)
    drawn = random.uniform(-1, 1, shape) if is_uniform else random.standard_normal(shape)
    result: NDArray[Any] = (drawn * scale).astype(dtype)
    return result
