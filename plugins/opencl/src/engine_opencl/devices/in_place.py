"""Inputs that kernels read in place, on devices that compute in the host's memory."""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

POINTER_ALIGNMENT: Final = 16
"""The alignment in bytes of `malloc`, and so of most users' arrays."""
_READ_ANYWHERE: Final = ("Portable Computing Language",)
"""Drivers that read host memory in place at any address. Others copy memory that is not aligned like a sub-buffer; with
Intel's driver, this takes five times as long as a plain copy.
"""
MIN_BYTES: Final = 1 << 15
"""Below this size, copying an input is as fast as binding it."""


def input_alignment(driver: str, part_alignment: int) -> int:
    """The alignment in bytes that an input needs to be read in place."""
    return POINTER_ALIGNMENT if driver.startswith(_READ_ANYWHERE) else part_alignment


class InPlaceRegions:
    """The regions of users' memory that running inferences read, each as one buffer. Thread-safe.

    A new buffer is created for each inference, as a driver may keep a copy of the memory at that time. Overlapping
    buffers are undefined (OpenCL 3.0, 5.2.1): inferences with the same input share one, and inputs that partly overlap
    others, or are not aligned to `alignment` bytes, are not read in place.
    """

    def __init__(self, alignment: int = POINTER_ALIGNMENT) -> None:
        self.alignment = alignment
        self._in_use: dict[tuple[int, int], tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def acquire(self, context: Any, value: NDArray[np.uint8]) -> Any:
        """A buffer in the memory of an input, until `release`; None if the input should or must be copied."""
        import pyopencl as cl

        if value.nbytes < MIN_BYTES or (begin := value.ctypes.data) % self.alignment:
            return None
        region = begin, begin + value.nbytes
        with self._lock:
            if region in self._in_use:
                memory, users = self._in_use[region]
            elif any(start < region[1] and begin < end for start, end in self._in_use):
                return None
            else:
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
                memory, users = cl.Buffer(context, flags, hostbuf=value), 0
            self._in_use[region] = memory, users + 1
        return memory

    def release(self, value: NDArray[np.uint8]) -> None:
        """Release a buffer that an inference acquired."""
        region = value.ctypes.data, value.ctypes.data + value.nbytes
        with self._lock:
            memory, users = self._in_use.pop(region)
            if users > 1:
                self._in_use[region] = memory, users - 1
