"""Elements of fewer than 8 bits: the engine has each in a byte, OpenVINO several, the first in the lowest bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def packed(codes: Bytes, bits: int) -> Bytes:
    """The bytes of elements whose codes are the low bits of one byte each; what is left of the last one is 0."""
    count = 8 // bits
    rows = np.zeros((-(-len(codes) // count), count), np.uint8)
    rows.reshape(-1)[: len(codes)] = codes & ((1 << bits) - 1)
    joined: Bytes = np.bitwise_or.reduce(rows << _shifts(bits), axis=1)
    return joined


def unpacked(data: Bytes, bits: int, count: int) -> Bytes:
    """The codes of the first `count` elements, in one byte each."""
    codes = (data[:, None] >> _shifts(bits)) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:count]


def _shifts(bits: int) -> Bytes:
    return np.arange(0, 8, bits, dtype=np.uint8)
