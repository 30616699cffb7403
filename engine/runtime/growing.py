"""`GrowingArray`: a value that grows along one dimension in place, such as the keys of past tokens."""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfMemoryError

Array = NDArray[Any]

_LEAST_ROOM: Final = 64
_PRUNED: Final = 16
"""Values of a block that are gone are forgotten whenever there are so many."""
_lock = threading.Lock()
"""Held while a place in a block is given to a value."""


class GrowingArray:
    """An array of which a longer one may begin with the same memory. Immutable, like the values of variables.

    Its elements lie in a block whose first dimension is the one that grows, so that a longer value needs no other
    distances between elements; the block has room for more. `extended` gives a value that shares the block, with new
    positions to be written; values that go on from the same one do not see each other's. A place that another value
    has is not given again: then the block is copied, as it is when its room is used up.

    Attributes:
        axis: the dimension that grows.
        shape: the shape of the value.
    """

    __slots__ = ("__weakref__", "_block", "axis", "shape")

    def __init__(self, block: _Block, axis: int, shape: tuple[int, ...]) -> None:
        self._block, self.axis, self.shape = block, axis, shape
        block.add(self)

    @classmethod
    def of(cls, array: Array, axis: int) -> GrowingArray:
        """A copy of an array. Raises `OutOfMemoryError`."""
        turned = np.moveaxis(array, axis, 0)
        block = _Block(_room(len(turned), turned.shape[1:], array.dtype))
        block.array[: len(turned)] = turned
        return cls(block, axis, array.shape)

    @property
    def length(self) -> int:
        """The length of the dimension that grows."""
        return self.shape[self.axis]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type."""
        return self._block.array.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the value, without the room for more."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def block(self) -> Array:
        """The memory: the dimension that grows first, with room for more, then the others in their order."""
        return self._block.array

    def array(self) -> Array:
        """The value as an array of its own."""
        return np.array(np.moveaxis(self._block.array[: self.length], 0, self.axis), order="C")

    def extended(self, count: int) -> GrowingArray:
        """A value with `count` more positions, which the caller writes into its block. Raises `OutOfMemoryError`."""
        with _lock:
            length, block = self.length + count, self._block
            if length > len(block.array) or block.is_taken(self.length):
                block = _Block(_room(length, block.array.shape[1:], block.array.dtype))
                block.array[: self.length] = self._block.array[: self.length]
            return GrowingArray(block, self.axis, self._shape(length))

    def shortened(self, count: int) -> GrowingArray:
        """The value without its last `count` positions."""
        with _lock:
            return GrowingArray(self._block, self.axis, self._shape(self.length - count))

    def _shape(self, length: int) -> tuple[int, ...]:
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])


class _Block:
    """Memory, and the values that lie in it; used by one thread at a time."""

    __slots__ = ("_used", "_values", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self._values: list[ref[GrowingArray]] = []
        self._used = 0  # by the longest value so far, which may be gone

    def add(self, value: GrowingArray) -> None:
        """Keep a value in mind as long as it exists."""
        if len(self._values) >= _PRUNED:
            self._values = [known for known in self._values if known() is not None]
        self._values.append(ref(value))
        self._used = max(self._used, value.length)

    def is_taken(self, length: int) -> bool:
        """Whether a value has positions from `length` on."""
        if self._used > length:
            values = [value for known in self._values if (value := known()) is not None]
            self._used = max((value.length for value in values), default=0)
        return self._used > length


def _room(length: int, others: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array for twice the length; its memory is used as it is written."""
    try:
        return np.empty((max(2 * length, _LEAST_ROOM), *others), dtype)
    except (MemoryError, ValueError):
        pass
    try:
        return np.empty((length, *others), dtype)
    except (MemoryError, ValueError) as e:
        raise OutOfMemoryError(
            f"not enough memory for {length} positions of a variable, each of {list(others)} {dtype}; the request "
            "keeps the value that it had"
        ) from e
