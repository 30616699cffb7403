"""Arrays that are views of mapped files."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def release_pages(array: NDArray[Any]) -> None:
    """Let the system have the memory of an array that is a view of a mapped file; nothing for other arrays.

    The data stays: what is read again comes from the file. Only whole pages within the array are let go of.
    """
    mapping = _mapping_of(array)
    if mapping is None or not hasattr(mapping, "madvise"):
        return
    begin = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    start = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (begin + array.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, start, length)


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapping that a contiguous array lies in, if it can only be read: written pages could not be read again."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not array.flags.c_contiguous or not memoryview(base).readonly:
        return None
    return base
