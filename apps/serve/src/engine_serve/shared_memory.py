"""`Regions`: shared memory of clients on this machine, by the names under which they registered it.

Regions are read and written by system calls, and never mapped. A client can shorten its memory at any time, and then an
access to a mapping ends the process with SIGBUS; nothing prevents it, because Linux accepts neither seals nor leases
for objects of `shm_open` that another process can write. And kernels that check values before they use them, such as
indices, must not read memory that changes in between.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.errors import Busy, EngineError, InputError, NotAllowedError, OutOfMemoryError, UnsupportedError

FOLDER: Final = Path("/dev/shm")
"""Where Linux has the objects of `shm_open`."""
_MAX_REGIONS: Final = 256
"""Each keeps a file open, and a process may often open no more than 1,024."""
_MAX_NAME: Final = 255
_MAX_BYTES: Final = 1 << 62


class _File:
    """An open object of shared memory, closed with the last region and request that use it."""

    def __init__(self, key: str) -> None:
        self.descriptor = _opened(key)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"the key {key!r:.80} is not that of a shared memory object")
        if status.st_uid != os.geteuid():
            raise NotAllowedError(f"the shared memory {key!r:.80} belongs to another user than the server's")
        self.identity = (status.st_dev, status.st_ino)

    @property
    def size(self) -> int:
        """The bytes that the object has now; its client can change them."""
        return os.fstat(self.descriptor).st_size


def _opened(key: str) -> int:
    name = key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", "..") or len(os.fsencode(name)) > _MAX_NAME:
        raise InputError(
            f"the key {key!r:.80} cannot be that of a shared memory object: expected a name of at most {_MAX_NAME} "
            "bytes, without path separators after the first character"
        )
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block
    try:
        return os.open(FOLDER / name, flags)
    except FileNotFoundError:
        raise InputError(f"there is no shared memory object {key!r:.80} on the server's machine") from None
    except PermissionError:
        raise NotAllowedError(f"the server may not read and write the shared memory {key!r:.80}") from None
    except OSError as e:
        if e.errno in (errno.EMFILE, errno.ENFILE):
            raise Busy("the server has too many open files for another region; unregister some") from e
        raise InputError(f"the key {key!r:.80} is not that of a shared memory object: {e.strerror}") from e


@dataclass(frozen=True, slots=True)
class Region:
    """`size` bytes of a shared memory object from `offset`, which its client may shorten at any time."""

    name: str
    key: str
    offset: int
    size: int
    file: _File

    def span(self, offset: int, size: int) -> Span:
        """A part. Raises `InputError` if it is not within the region."""
        if offset + size > self.size:
            raise InputError(
                f"{size} bytes from offset {offset} end beyond region {self.name!r:.80}, which was registered with "
                f"{self.size} bytes"
            )
        return Span(self, self.offset + offset, size)


@dataclass(frozen=True, slots=True)
class Span:
    """`size` bytes of a region, from `start` in its shared memory object."""

    region: Region
    start: int
    size: int

    @property
    def place(self) -> tuple[tuple[int, int], int]:
        """The order of spans, by their objects and positions, whatever their regions are."""
        return self.region.file.identity, self.start

    def overlaps(self, other: Span) -> bool:
        """Whether both have a byte in common, also by different regions."""
        is_same = self.region.file.identity == other.region.file.identity
        return is_same and self.start < other.start + other.size and other.start < self.start + self.size

    def read(self) -> memoryview:
        """A copy of the bytes. Raises `InputError` if the memory has been shortened."""
        copy = np.empty(self.size, np.uint8).data
        done = 0
        while done < self.size:
            count = os.preadv(self.region.file.descriptor, [copy[done:]], self.start + done)
            if not count:
                raise self._shortened()
            done += count
        return copy

    def write(self, data: Any) -> None:
        """Copy bytes, of which `len` is the number, to the span's beginning.

        Raises `InputError` if the memory has been shortened, and `OutOfMemoryError` if the system has no memory for
        pages that the client has not used yet.
        """
        given = memoryview(data)
        if self.start + self.size > self.region.file.size:  # a write would make the object longer again
            raise self._shortened()
        done = 0
        while done < len(given):
            try:
                done += os.pwrite(self.region.file.descriptor, given[done:], self.start + done)
            except OSError as e:
                raise OutOfMemoryError(f"region {self.region.name!r:.80} cannot be written: {e.strerror}") from e

    def _shortened(self) -> InputError:
        return InputError(
            f"the shared memory of region {self.region.name!r:.80} ends before byte {self.start + self.size}: it has "
            f"been shortened to {self.region.file.size} bytes since it was registered"
        )


class Regions:
    """The regions that clients have registered. Not thread-safe: used by one event loop.

    A request keeps its regions: they can be unregistered, and their objects unlinked, while it runs.
    """

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: Any, key: Any, size: Any, offset: Any = 0) -> None:
        """Add a region of a shared memory object.

        Raises `InputError` for a name that is taken, a key without an object, and a range beyond it; `NotAllowedError`
        for another user's object; and `Busy` for too many regions.
        """
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not isinstance(key, str):
            raise InputError(f"a region needs a `name` of at most {_MAX_NAME} characters and a `key`, a text")
        if name in self._regions:
            raise InputError(f"there is a region {name!r:.80} already; unregister it first")
        if len(self._regions) >= _MAX_REGIONS:
            raise Busy(f"there are {_MAX_REGIONS} regions, and the server keeps no more; unregister some")
        where = f"of region {name!r:.80}"
        size, offset = whole(size, f"`byte_size` {where}", least=1), whole(offset, f"`offset` {where}")
        file = _File(key)
        if offset + size > file.size:
            raise InputError(
                f"{size} bytes from offset {offset} end beyond the shared memory {key!r:.80} of {file.size} bytes"
            )
        self._regions[name] = Region(name, key, offset, size, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all for the name "". An unknown name is not an error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def find(self, name: Any) -> Region:
        """The region of a name. Raises `InputError`."""
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise InputError(f"there is no region {name!r:.80} of shared memory; register it first")
        return region

    def described(self, name: str = "") -> list[dict[str, Any]]:
        """A region, or all for the name "", as the protocol's extension describes them. Raises `InputError`."""
        found = [self.find(name)] if name else list(self._regions.values())
        return [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.size} for r in found]


def whole(value: Any, what: str, least: int = 0) -> int:
    """A number of bytes. Raises `InputError`."""
    if type(value) is not int or not least <= value < _MAX_BYTES:
        raise InputError(f"{what} is {value!r:.40}; expected a whole number of {least} or more")
    return value


def require_folder() -> None:
    """Raise `UnsupportedError` on a system whose shared memory the server cannot use."""
    if not FOLDER.is_dir() or not hasattr(os, "preadv"):
        raise UnsupportedError(f"--shared-memory needs Linux: shared memory is used as the files of {FOLDER}")


def turned_off(error: type[EngineError] = NotAllowedError) -> EngineError:
    """What is answered to clients where shared memory is not turned on."""
    return error("clients may not use shared memory, since the server was started without --shared-memory")
