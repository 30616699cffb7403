"""`SharedMemory`: memory of two processes. It has no name, so that nothing remains of it when both have ended."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, OutOfMemoryError, UnsupportedError

LINE: Final = 64
"""The alignment of tensors in shared memory."""
_SEALS: Final = 0x0002 | 0x0004  # F_SEAL_SHRINK, F_SEAL_GROW, which Python 3.11 does not name
_ADD_SEALS, _GET_SEALS = 1033, 1034


def aligned(size: int) -> int:
    """`size`, rounded up to a multiple of the alignment."""
    return (size + LINE - 1) // LINE * LINE


def new_memory() -> int:
    """A descriptor of memory that can be written like a file. Raises `OutOfMemoryError`, `UnsupportedError`."""
    if not hasattr(os, "memfd_create"):
        raise UnsupportedError("ISOLATED needs shared memory without a name (memfd_create), which Linux has")
    try:
        return os.memfd_create("engine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as e:
        raise OutOfMemoryError(f"cannot make shared memory: {e}") from e


def seal(fd: int) -> None:
    """Fix the size of memory. Raises `OSError`."""
    fcntl.fcntl(fd, _ADD_SEALS, _SEALS)


class SharedMemory:
    """A file descriptor of memory whose size can no longer change, and its mapping.

    If the size could change, a process that shrinks the memory would kill the other one. A private mapping shows what
    others write, and keeps to itself what is written through it.
    """

    __slots__ = ("_map", "bytes", "fd", "size")

    def __init__(self, fd: int, size: int, *, is_private: bool) -> None:
        self.fd, self.size = fd, size
        flags = mmap.MAP_PRIVATE if is_private else mmap.MAP_SHARED
        try:
            self._map = mmap.mmap(fd, max(size, 1), flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as e:
            raise OutOfMemoryError(f"cannot map {size} bytes of shared memory: {e}") from e
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    @classmethod
    def created(cls, size: int, *, is_private: bool = False) -> Self:
        """New memory, of zeros. Raises `OutOfMemoryError`, `UnsupportedError` if the system has no such memory."""
        fd = new_memory()
        try:
            os.ftruncate(fd, max(size, 1))
            seal(fd)
            return cls(fd, size, is_private=is_private)
        except BaseException as e:
            os.close(fd)
            if isinstance(e, OSError):
                raise OutOfMemoryError(f"cannot make {size} bytes of shared memory: {e}") from e
            raise

    @classmethod
    def received(cls, fd: int, size: int, *, is_private: bool = False) -> Self:
        """Memory that the other process made. Takes the descriptor. Raises `DeviceError` if it can shrink."""
        try:
            seals, present = fcntl.fcntl(fd, _GET_SEALS), os.fstat(fd).st_size
            if seals & _SEALS != _SEALS:
                raise DeviceError("the other process passed shared memory whose size can change")
            if not 0 <= size <= present:
                raise DeviceError(f"the other process passed shared memory of {present} bytes instead of {size}")
            return cls(fd, size, is_private=is_private)
        except BaseException as e:
            os.close(fd)
            if isinstance(e, OSError):
                raise DeviceError(f"the other process passed something else than shared memory: {e}") from e
            raise

    @classmethod
    def of(cls, parts: Iterable[memoryview], size: int) -> Self:
        """New memory with these bytes, one after the other, each aligned; `size` is what they need."""
        made, at = cls.created(size), 0
        for part in parts:
            made.bytes[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
            at += aligned(part.nbytes)
        return made

    @property
    def buffer(self) -> memoryview:
        """The memory as bytes, which starts at an address that is a multiple of a page."""
        return memoryview(self._map)[: self.size]

    def view(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The array of this type and shape that begins at byte `at`. Raises `DeviceError` if it ends outside."""
        count = 1
        for length in shape:
            count *= length
        size = count * dtype.itemsize
        if min(shape, default=0) < 0 or at < 0 or at + size > self.size:
            raise DeviceError(f"a tensor of {size} bytes at {at} is outside of shared memory of {self.size} bytes")
        return self.bytes[at : at + size].view(dtype).reshape(shape)

    def forget_writes(self) -> None:
        """Of a private mapping: show again what others write, where something was written through it."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping lasts as long as its arrays."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close_fd()
