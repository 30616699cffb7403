"""Inputs that kernels read where the user has them, on devices that compute in the host's memory."""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

POINTER_ALIGNMENT: Final = 16
"""Bytes; what `malloc` gives, and so most of the users' arrays have."""
_READ_ANYWHERE: Final = ("Portable Computing Language",)
"""Drivers that read memory of the host in place wherever it begins. Others copy what does not begin where a buffer's
part may; Intel's takes five times as long for that as a plain copy."""
MIN_BYTES: Final = 1 << 15
"""Below this, copying an input takes no longer than binding it anew."""


def input_alignment(driver: str, part_alignment: int) -> int:
    """Where an input has to begin to be read in place: at a multiple of how many bytes."""
    return POINTER_ALIGNMENT if driver.startswith(_READ_ANYWHERE) else part_alignment


class InPlaceRegions:
    """The users' memory that inferences on a device read at present, each region as one buffer. Thread-safe.

    A buffer is made for each inference anew, as a driver may keep a copy of what the memory holds when it is made.
    Buffers in overlapping memory are undefined (OpenCL 3.0, 5.2.1): inferences with the same input share one, and
    what overlaps in part is not read in place, nor what begins at no multiple of `alignment` bytes.
    """

    def __init__(self, alignment: int = POINTER_ALIGNMENT) -> None:
        self._alignment = alignment
        self._in_use: dict[tuple[int, int], tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def acquire(self, context: Any, value: NDArray[np.uint8]) -> Any:
        """A buffer in the memory of an input, until `release`; None where it should be, or has to be, copied."""
        import pyopencl as cl

        if value.nbytes < MIN_BYTES or (begin := value.ctypes.data) % self._alignment:
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
        """Say that an inference no longer reads what it has acquired."""
        region = value.ctypes.data, value.ctypes.data + value.nbytes
        with self._lock:
            memory, users = self._in_use.pop(region)
            if users > 1:
                self._in_use[region] = memory, users - 1
