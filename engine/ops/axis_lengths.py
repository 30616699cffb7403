"""The lengths around one axis, for operators that work along it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple


class AxisLengths(NamedTuple):
    """A tensor as three dimensions: [outer, length, inner]."""

    outer: int
    """The product of the lengths before the axis."""
    length: int
    """The length of the axis."""
    inner: int
    """The product of the lengths after the axis."""

    @classmethod
    def of(cls, shape: Sequence[int], axis: int) -> AxisLengths:
        """The lengths around `axis`, which may be negative; a scalar is treated as one element along an axis."""
        if not shape:
            return cls(1, 1, 1)
        axis %= len(shape)
        return cls(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
