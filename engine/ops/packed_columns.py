"""How the data of constants is derived from packed weights, so that devices can read these as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType
from engine.startup import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """Unpacks a matrix [rows, N] of `element_type` from its columns: bytes [N, ...] of 2, 4 or 8 bits a code.

    The first code of a byte is in its low bits. Codes of a signed type are stored plus half of their range. There may
    be more codes than rows.
    """

    bits: int
    rows: int
    element_type: ElementType

    def __call__(self, data: Array) -> Array:
        from engine.ops.tensors import transposed_matrix  # which imports onnx

        codes = unpacked_rows(transposed_matrix(data.reshape(len(data), -1)), self.bits)[: self.rows]
        if self.element_type.is_signed:
            codes ^= np.uint8(1 << (self.bits - 1))  # the low bits of codes less half of the range
        return codes.view(self.element_type.numpy)


class JoinedColumns:
    """Puts matrices of equally many rows side by side."""

    __slots__ = ()

    def __call__(self, *matrices: Array) -> Array:
        return np.concatenate(matrices, axis=-1)


def unpacked_rows(data: Array, bits: int) -> Array:
    """Codes of a matrix of u8, along its first axis and the first in the low bits, in a byte each.

    ml_dtypes keeps elements of 2 and 4 bits in the low bits of bytes whose other bits are zero, so that the result can
    be viewed as such elements.
    """
    if bits == 8:
        return data.copy()
    count, mask = 8 // bits, np.uint8((1 << bits) - 1)
    elements = np.empty((data.shape[0] * count, *data.shape[1:]), np.uint8)
    for index in range(count):
        rows = elements[index::count]
        np.right_shift(data, np.uint8(index * bits), out=rows)
        np.bitwise_and(rows, mask, out=rows)
    return elements
