"""The sources of a blob (a path, a buffer, or a binary stream) behind one interface."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from mmap import ACCESS_READ
from mmap import mmap as MemoryMap  # noqa: N812
from typing import Any, BinaryIO, Protocol, TypeAlias, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from engine.errors import BlobError, BlobFormatError
from engine.files import position_of, why_not_opened


class ReadableStream(Protocol):
    """A blocking binary stream. If it also has `seekable`, `tell` and `seek`, its size is checked."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; none only at the end."""


Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
"""C-contiguous memory; any object with the buffer protocol is accepted."""

BlobInput: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | ReadableStream
"""A path, the bytes of a blob, or a binary stream positioned at a blob's first byte."""

ALIGNMENT = 64
"""Sections start at multiples of this many bytes: a cache line, and the widest vector load."""

_CHUNK = 2**20


class Source(Protocol):
    """Bytes that are read from front to back."""

    where: str
    """The source's name in messages."""
    size: int | None
    """The number of bytes; None if unknown."""
    is_exact: bool
    """Whether data after the blob is an error."""

    @property
    def why_empty(self) -> str:
        """Why a source of size 0 has no data."""

    def read(self, count: int) -> memoryview:
        """The next `count` bytes, read-only; raises `BlobFormatError` if there are fewer."""

    def skip(self, count: int) -> None:
        """Pass over the next `count` bytes; raises `BlobFormatError` if there are fewer."""

    def rewind(self) -> None:
        """Restore the position of a seekable stream."""


@contextmanager
def open_source(source: BlobInput, *, use_mmap: bool = False) -> Iterator[Source]:
    """Open `source`; on exit, close the file if one was opened. Views that were read stay valid."""
    if isinstance(source, (str, os.PathLike)):
        where = f"blob {os.fspath(source)}"
        with _open_regular(source, where) as file:
            size = os.fstat(file.fileno()).st_size
            if use_mmap:
                yield ViewSource(_mapped(file, size, where), where)
            else:
                yield StreamSource(file, where, size, is_exact=True)
        return
    if use_mmap:
        raise BlobError(f"mmap=True needs a path; got {type(source).__name__}")
    # Buffers first: a mmap.mmap is both a buffer and a stream, and is used in place.
    if (view := _flat(source)) is not None:
        yield ViewSource(view, "blob in memory")
        return
    if not hasattr(source, "read"):
        raise BlobError(f"a blob is read from a path, bytes or a binary stream; got {type(source).__name__}")
    where = f"blob stream {type(source).__name__}"
    # Only `read` is required; the other methods are checked for before use.
    stream = cast(BinaryIO, source)
    yield StreamSource(stream, where, _remaining(stream, where), is_exact=False)


class ViewSource:
    """A blob in memory or mapped; nothing is copied."""

    is_exact = True
    why_empty = "empty"

    def __init__(self, view: memoryview, where: str) -> None:
        self.where = where
        self.size: int | None = len(view)
        self._view = view
        self._position = 0

    def read(self, count: int) -> memoryview:
        """The next `count` bytes, as a view of the buffer."""
        start, self._position = self._position, self._position + count
        if self._position > len(self._view):
            raise BlobFormatError(
                f"{self.where}: truncated; {count} bytes at {start} exceed its {len(self._view)} bytes"
            )
        return self._view[start : self._position]

    def skip(self, count: int) -> None:
        """Pass over bytes; a read beyond the end fails."""
        self.read(count)

    def rewind(self) -> None:
        """Do nothing: bytes in memory have no position."""


class StreamSource:
    """A blob in a stream; `size` counts from the current position, and is None if the stream does not know it."""

    def __init__(self, stream: BinaryIO, where: str, size: int | None, *, is_exact: bool) -> None:
        self.where = where
        self.size = size
        self.is_exact = is_exact
        self._stream = stream
        self._position = 0

    def read(self, count: int) -> memoryview:
        """The next `count` bytes in new memory, whose address is a multiple of 64.

        If the size is unknown, memory grows with the data that arrives, because `count` may be forged.
        """
        capacity = count if self.size is not None else min(count, _CHUNK)
        buffer = allocate_aligned(capacity, self.where)
        filled = 0
        while filled < count:
            if filled == capacity:
                capacity = min(count, 2 * capacity)
                grown = allocate_aligned(capacity, self.where)
                grown[:filled] = buffer
                buffer = grown
            filled += self._read_into(buffer[filled : min(filled + _CHUNK, capacity)])
        return buffer.toreadonly()

    def region(self, count: int) -> FileRegion | memoryview:
        """The next `count` bytes, which are read when they are used if this is a file."""
        if not isinstance(self._stream, FileIO):
            return self.read(count)
        return FileRegion(self._stream, count, self.where)

    def skip(self, count: int) -> None:
        """Pass over the next bytes, without reading them if the stream can seek and its size is known."""
        if self.size is None:
            while count:
                count -= len(self._read_some(min(_CHUNK, count)))
            return
        if self._position + count > self.size:
            raise BlobFormatError(f"{self.where}: truncated; it has {self.size} bytes of {self._position + count}")
        try:
            self._stream.seek(count, os.SEEK_CUR)
        except Exception as e:
            raise BlobError(f"{self.where}: seeking failed at byte {self._position}: {e}") from e
        self._position += count

    @property
    def why_empty(self) -> str:
        """The reason why the stream has no data, with the way out if it is at its end."""
        position = position_of(self._stream)
        return f"the stream is at its end, byte {position}; call seek(0) on it first" if position else "empty"

    def rewind(self) -> None:
        """Restore the stream's position if it can seek."""
        if not _can_seek(self._stream):
            return
        try:
            self._stream.seek(-self._position, os.SEEK_CUR)
        except Exception as e:
            raise BlobError(f"{self.where}: the stream cannot seek back to the blob's start: {e}") from e

    def _read_into(self, memory: memoryview) -> int:
        """Fill the beginning of some memory; a file without a copy. How many bytes."""
        if not isinstance(self._stream, FileIO):
            chunk = self._read_some(len(memory))
            memory[: len(chunk)] = chunk
            return len(chunk)
        try:
            count = self._stream.readinto(memory)
        except Exception as e:
            raise BlobError(f"{self.where}: reading failed at byte {self._position}: {e}") from e
        if count is None:
            raise BlobError(f"{self.where}: it has no data now; expected a blocking binary stream")
        if count == 0:
            raise BlobFormatError(f"{self.where}: truncated; the data ends at byte {self._position}")
        self._position += count
        return count

    def _read_some(self, limit: int) -> bytes:
        try:
            chunk = self._stream.read(limit)
        except Exception as e:
            raise BlobError(f"{self.where}: reading failed at byte {self._position}: {e}") from e
        if not isinstance(chunk, (bytes, bytearray, memoryview)) or len(chunk) > limit:
            got = f"{len(chunk)} bytes" if isinstance(chunk, bytes) else type(chunk).__name__
            raise BlobError(f"{self.where}: read({limit}) returned {got}; expected a blocking binary stream")
        if not chunk:
            raise BlobFormatError(f"{self.where}: truncated; the data ends at byte {self._position}")
        self._position += len(chunk)
        return bytes(chunk)


class FileRegion:
    """A part of an open file. A slice of it is read when it is taken, into new memory; the file stays open until then.

    Thread-safe. Slicing raises `BlobFormatError` if the file has become shorter, `BlobError` if it cannot be read.
    """

    __slots__ = ("__weakref__", "_descriptor", "_size", "_start", "_where")

    def __init__(self, file: FileIO, size: int, where: str) -> None:
        self._descriptor = os.dup(file.fileno())
        finalize(self, os.close, self._descriptor)
        self._start, self._size, self._where = file.tell(), size, where

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(self._size)
        memory = allocate_aligned(max(0, stop - start), self._where)
        filled = 0
        while filled < len(memory):
            try:
                count = os.preadv(self._descriptor, [memory[filled:]], self._start + start + filled)
            except OSError as e:
                raise BlobError(f"{self._where}: reading failed at byte {self._start + start + filled}: {e}") from e
            if not count:
                raise BlobFormatError(
                    f"{self._where}: truncated while it was read, at byte {self._start + start + filled}"
                )
            filled += count
        return memory.toreadonly()


def allocate_aligned(size: int, where: str) -> memoryview:
    """New memory, whose address is a multiple of `ALIGNMENT`. Raises `BlobError`, which names `where`."""
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as e:
        raise BlobError(f"{where}: cannot allocate {size} bytes; open a file with mmap=True") from e
    start = -memory.ctypes.data % ALIGNMENT
    return memory.data[start : start + size]


def aligned_copy(data: object, where: str) -> memoryview:
    """A read-only copy of a buffer, whose address is a multiple of `ALIGNMENT`; the buffer itself if its own is."""
    view = memoryview(data)  # type: ignore[arg-type]
    view = view.cast("B") if view.nbytes else memoryview(b"")
    if not view.nbytes or np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT == 0:
        return view.toreadonly()
    copy = allocate_aligned(len(view), where)
    copy[:] = view
    return copy.toreadonly()


def _open_regular(path: str | os.PathLike[str], where: str) -> BinaryIO:
    try:
        # Opening a pipe would block until it has a writer, so check first.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BlobError(f"{where}: not a regular file; open it and pass the stream")
        return open(path, "rb", buffering=0)
    except (OSError, ValueError) as e:
        raise BlobError(f"{where}: cannot be opened: {why_not_opened(path, e)}") from e


def _mapped(file: BinaryIO, size: int, where: str) -> memoryview:
    if size == 0:  # the system cannot map an empty file
        return memoryview(b"")
    try:
        return memoryview(MemoryMap(file.fileno(), size, access=ACCESS_READ))
    except (OSError, ValueError) as e:
        raise BlobError(f"{where}: cannot be mapped: {e}; open it with mmap=False") from e


def _flat(source: object) -> memoryview | None:
    """The bytes of a buffer, in place and read-only; None for an object that is not a buffer."""
    try:
        view = memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return None
    except (BufferError, ValueError) as e:
        raise BlobError(f"blob in memory: {type(source).__name__} does not expose its bytes: {e}") from e
    if not view.c_contiguous:
        raise BlobError("blob in memory: expected contiguous bytes, got a strided buffer; pass bytes() of it")
    return (view.cast("B") if view.nbytes else memoryview(b"")).toreadonly()


def _remaining(stream: BinaryIO, where: str) -> int | None:
    """Bytes from the stream's position to its end; None if the stream does not know."""
    if not _can_seek(stream):
        return None
    try:
        start = stream.tell()
        stream.seek(0, os.SEEK_END)
        end = stream.tell()
    except Exception:  # gzip before Python 3.12 can seek, but not from the end
        return None
    try:
        stream.seek(start)
        return max(end - start, 0)
    except Exception as e:
        raise BlobError(f"{where}: seeking back from its end failed: {e}") from e


def _can_seek(stream: BinaryIO) -> bool:
    try:
        return bool(stream.seekable())
    except Exception:  # no such method, or the stream is closed, which the next read reports
        return False
