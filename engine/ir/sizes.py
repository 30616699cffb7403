"""How many bytes arrays of given types take, and those that share memory take together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from engine.ir.types import TensorType, ValueType


def array_bytes(value_type: ValueType, shape: Sequence[int]) -> int:
    """The bytes of an array of this shape; 0 if its elements are not in it, as those of strings."""
    if not isinstance(value_type, TensorType) or value_type.element_type.numpy.hasobject:
        return 0
    return math.prod(shape) * int(value_type.element_type.numpy.itemsize)


def known_bytes(value_type: ValueType) -> int | None:
    """The bytes of the array of a value; None if they are not known before an inference."""
    if not isinstance(value_type, TensorType) or not value_type.shape.is_static:
        return None
    return array_bytes(value_type, value_type.shape.get_shape())


def joined_bytes(spans: Iterable[tuple[int, int]]) -> int:
    """The bytes of memory in any of the spans, each from an address to the one behind its last byte."""
    total = end = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total
