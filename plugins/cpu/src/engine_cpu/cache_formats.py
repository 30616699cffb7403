"""How variables in place store keys and values: in f32, or in fewer bits (csrc/kernels/cache_rows.hpp)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType, f32
from engine.ir.element_type import bf16, f16
from engine.startup import dataclass

Array = NDArray[Any]

_SCALE_BYTES: Final = 4
_MAX_CODE: Final = 127
_MIN_MAGNITUDE: Final = np.float32(1e-30)
_ROUNDED_BITS: Final = 0xFF


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """One of the formats, by the name that kernels have for it.

    A row is the elements along the last dimension: the keys or values of one head for one token.
    """

    name: str
    element_bytes: int
    number: ElementType | None = None
    """The type of elements that are numbers by themselves."""
    extra: int = 0
    """Elements that follow a row's elements."""

    def row(self, size: int) -> int:
        """The elements that a row of this size takes."""
        return size + self.extra

    def encode(self, array: Array) -> Array:
        """Rows of floating-point numbers in this format."""
        if self.number is not None:
            return array.astype(self.number.numpy, copy=False).view(f"u{self.element_bytes}")
        array = array.astype(np.float32, copy=False)
        scale = _scales(array)
        with np.errstate(invalid="ignore"):
            codes = np.where(scale > 0, np.divide(array, scale, where=scale > 0, out=np.zeros_like(array)), 0)
        codes = np.trunc(codes + np.copysign(np.float32(0.5), codes)).astype(np.int8)
        return np.concatenate([codes.view(np.uint8), scale.view(np.uint8)], axis=-1)

    def decode(self, rows: Array) -> Array:
        """The values of rows in this format, in the type of its elements or in f32."""
        if self.number is not None:
            return rows.view(self.number.numpy)
        codes = np.ascontiguousarray(rows[..., :-_SCALE_BYTES]).view(np.int8)
        scale = np.ascontiguousarray(rows[..., -_SCALE_BYTES:]).view(np.float32)
        values: Array = codes.astype(np.float32) * scale
        return values


F32: Final = CacheFormat("f32", 4, f32)
F16: Final = CacheFormat("f16", 2, f16)
BF16: Final = CacheFormat("bf16", 2, bf16)
INT8: Final = CacheFormat("i8", 1, extra=_SCALE_BYTES)
CACHE_FORMATS: Final = {"f32": F32, "bf16": BF16, "int8": INT8}
"""The formats by the values of KV_CACHE_PRECISION."""
_OWN: Final = {f32: F32, f16: F16, bf16: BF16}
"""The formats of variables of these types, unless fewer bits are configured."""


def format_for(wanted: CacheFormat, element_type: ElementType, rank: int) -> CacheFormat | None:
    """The format of a variable; None if it has no number that kernels compute with.

    Rows that join several heads have no common scale: they stay in the variable's type.
    """
    own = _OWN.get(element_type)
    if own is None or wanted.element_bytes >= own.element_bytes or (wanted is INT8 and rank != 4):
        return own
    return wanted


def _scales(array: Array) -> Array:
    """The scales of rows of 8 bits; NaN for those with values that are not finite."""
    largest = np.abs(array).max(axis=-1, keepdims=True, initial=0).astype(np.float32)
    scale = (largest / np.float32(_MAX_CODE)).astype(np.float32)
    with np.errstate(over="ignore"):
        rounded = ((scale.view(np.uint32) + np.uint32(_ROUNDED_BITS)) & np.uint32(~_ROUNDED_BITS & 0xFFFFFFFF)).view(
            np.float32
        )
    rounded = np.where(largest < _MIN_MAGNITUDE, np.float32(0), rounded)
    return np.where(np.isfinite(largest), rounded, np.float32(np.nan)).astype(np.float32)
