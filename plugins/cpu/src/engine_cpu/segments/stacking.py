"""The stacks of a loop, one element of each trip, within the memory that is available."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.errors import InputError, OutOfMemoryError
from engine.limits import available_memory, check_bytes
from engine_cpu.segments.segment import Array, Value

_UNCHECKED: Final = 16 << 20
"""For smaller arrays, the available memory is not checked."""


def new_stack(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], limit: int) -> Array:
    """An array for what node `name` stacks.

    Raises `OutOfMemoryError` if it is larger than the available memory, or than `limit` bytes unless that is 0.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if limit:
        check_bytes(nbytes, name, limit)
    if nbytes > _UNCHECKED and nbytes > available_memory():
        raise too_large(name, f"an output of {nbytes} bytes, of shape {list(shape)}")
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as e:  # ValueError: the size overflows
        raise too_large(name, f"an output of {nbytes} bytes, of shape {list(shape)}") from e


def too_large(name: str, what: str) -> OutOfMemoryError:
    """The error for a node whose stacked outputs do not fit into memory."""
    return OutOfMemoryError(
        f"{name}: its iterations stack {what}; {available_memory()} bytes of memory are available: "
        "limit the number of iterations, or do not stack the value"
    )


class Stack:
    """Elements whose number, and maybe shape, shows only while a loop runs."""

    def __init__(self, name: str, index: int, limit: int) -> None:
        """Make an empty stack for output `index` of node `name`; `limit`: see `new_stack`."""
        self._name, self._what, self._limit = name, f"{name}, stacked output {index}", limit
        self._elements: list[Array] = []
        self._nbytes = 0
        self._checked = _UNCHECKED

    def append(self, element: Value) -> None:
        """Add the element of one trip. Raises `InputError` for another shape than before, and `OutOfMemoryError`."""
        element = np.asarray(element)
        if self._elements and element.shape != self._elements[0].shape:
            raise InputError(
                f"{self._what}: iteration {len(self._elements)} made the shape {list(element.shape)}, iterations "
                f"before it {list(self._elements[0].shape)}; expected equal shapes"
            )
        self._elements.append(element)
        self._nbytes += element.nbytes
        if self._limit:
            check_bytes(self._nbytes, self._name, self._limit)
        if self._nbytes > self._checked:
            self._checked = 2 * self._nbytes
            if self._checked > available_memory():  # for doubling, and for a copy
                raise too_large(self._what, f"more than {self._nbytes} bytes")

    def array(self, axis: int, *, is_reversed: bool = False) -> Array:
        """All elements along a new axis, from the last one on if it is reversed; there is at least one."""
        elements = self._elements[::-1] if is_reversed else self._elements
        try:
            return np.ascontiguousarray(np.stack(elements, axis=axis))
        except MemoryError as e:
            raise too_large(self._what, f"{self._nbytes} bytes") from e


def stacked_shape(element: Sequence[int], trips: int, axis: int) -> tuple[int, ...]:
    """The shape of `trips` elements along a new axis, which may be negative."""
    shape = list(element)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, trips)
    return tuple(shape)
