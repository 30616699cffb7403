"""Arrays that are views of mapped files."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def release_pages(array: NDArray[Any]) -> None:
    """Release the memory pages of an array that is a view of a mapped file; does nothing for other arrays.

    The data stays valid: later reads load it from the file. Only pages entirely within the array are released.
    """
    mapping = _mapping_of(array)
    if mapping is None or not hasattr(mapping, "madvise"):
        return
    begin = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    start = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (begin + array.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, start, length)


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array is a view of a mapped file, whose pages take memory only while they are in use."""
    return _mapping_of(array) is not None


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapping of a contiguous array if it is read-only: changes to a writable one would be lost."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not array.flags.c_contiguous or not memoryview(base).readonly:
        return None
    return base
