"""Inputs of cases: seeded random tensors, created on request, by default of values that rounding affects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType
from engine.ir.element_type import boolean, f32, i64
from engine.startup import dataclass

Array = NDArray[Any]

SPECIAL: Final = (np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 100.0, -100.0, 1e30, -1e30)
"""Special values for functions of real numbers: non-finite, both zeros, halves, and values whose square overflows."""


@dataclass(frozen=True, slots=True)
class Data:
    """A tensor of a case.

    Attributes:
        shape: its lengths.
        type: its element type.
        low, high: the range of its elements, which are uniformly distributed; for integers, `high` is excluded.
        values: the elements, repeated to fill the shape, instead of random ones.
        is_constant: whether it is a constant of the model rather than an input.
    """

    shape: tuple[int, ...]
    type: ElementType = f32
    low: float = -2.0
    high: float = 2.0
    values: tuple[Any, ...] | None = None
    is_constant: bool = False

    def array(self, seed: int) -> Array:
        """The tensor. Equal seeds give equal tensors."""
        if self.values is not None:
            given = np.array(self.values)
            with np.errstate(all="ignore"):
                return np.resize(given, self.shape).astype(self.type.numpy)
        random = np.random.default_rng(seed)
        if self.type is boolean:
            return random.integers(0, 2, self.shape).astype(np.bool_)
        if self.type.is_real:
            return random.uniform(self.low, self.high, self.shape).astype(self.type.numpy)
        return random.integers(int(self.low), int(self.high), self.shape).astype(self.type.numpy)

    @property
    def magnitude(self) -> float:
        """The largest absolute value that a finite element may have."""
        if self.values is None:
            return max(abs(self.low), abs(self.high))
        return max((abs(float(v)) for v in self.values if np.isfinite(v)), default=0.0)


def real(*shape: int, type: ElementType = f32, low: float = -2.0, high: float = 2.0) -> Data:
    """Real numbers between `low` and `high`."""
    return Data(shape, type, low, high)


def whole(*shape: int, type: ElementType = i64, low: int = -100, high: int = 100) -> Data:
    """Integers from `low` to `high` - 1; not below 0 for unsigned types."""
    return Data(shape, type, max(low, 0) if not type.is_signed else low, high)


def bools(*shape: int) -> Data:
    """A tensor of type bool whose elements are drawn from the seed of the case."""
    return Data(shape, boolean)


def filled(shape: Sequence[int], values: Sequence[Any], type: ElementType = f32) -> Data:
    """The given values, repeated to fill `shape`."""
    return Data(tuple(shape), type, values=tuple(values))


def constant(data: Data | Sequence[Any] | float, type: ElementType | None = None) -> Data:
    """A constant of the model: `data`, or the given values (by default i64, or f32 for a float)."""
    if isinstance(data, Data):
        return Data(data.shape, data.type, data.low, data.high, data.values, is_constant=True)
    if isinstance(data, Sequence):
        return Data((len(data),), type or i64, values=tuple(data), is_constant=True)
    default = f32 if isinstance(data, float) else i64
    return Data((), type or default, values=(data,), is_constant=True)


def limits(type: ElementType) -> tuple[Any, ...]:
    """The values of an element type near which arithmetic overflows."""
    if type.is_real:
        return SPECIAL
    info = np.iinfo(type.numpy)
    return (int(info.min), int(info.max), 0, 1, 3, 7, *((-1, -3, -7) if info.min else ()))


def pairs(type: ElementType, left: Sequence[Any] | None = None, right: Sequence[Any] | None = None) -> list[Data]:
    """Two tensors with every pair of two lists of values, by default of the type's limits."""
    first, second = left or limits(type), right or limits(type)
    return [
        filled((len(second), len(first)), first, type),
        filled((len(second), len(first)), np.repeat(np.array(second), len(first)).tolist(), type),
    ]
