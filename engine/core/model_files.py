"""`ModelFiles`: the files of a model, and whether they are what they were, by their stamps or by their content."""

from __future__ import annotations

import mmap
import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from engine.errors import BlobError
from engine.files import file_beside
from engine.files.digest import sha256
from engine.threads import in_threads

try:
    import fcntl
except ImportError:  # Windows, where contents are always hashed
    fcntl = None  # type: ignore[assignment]

SETTLED_NS: Final = 2_000_000_000
"""How old a change of a file is, in ns, before every later one has another time: coarse clocks count 2 s (FAT)."""
OWN: Final = ""
"""The location of the model's own file; the others are those of its external data, beside it."""

_PIECE: Final = 4 << 20
_READ_BYTES: Final = 1 << 16
"""Of one read: larger buffers would stay in the heaps of the threads."""
_MAX_THREADS: Final = 4
# Without O_NONBLOCK, opening a named pipe waits for its other end, perhaps forever.
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Stamp(NamedTuple):
    """What tells a file from another one, and from itself once it has changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp of a file that was examined."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @classmethod
    def now(cls, path: Path | None) -> Stamp | None:
        """The stamp of the regular file that a path leads to; None if there is none.

        The file is opened: on a network file system, only that asks the server whether it has changed.
        """
        try:
            descriptor = None if path is None else os.open(path, _READ)
        except (OSError, ValueError):  # ValueError: a path with a null byte
            return None
        if descriptor is None:
            return None
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return cls.of(status) if stat.S_ISREG(status.st_mode) else None

    def is_settled(self, when_ns: int) -> bool:
        """Whether every change since `when_ns` gives the file another stamp.

        Not on Windows, where `st_ctime` is when the file was created.
        """
        return os.name == "posix" and self.ctime_ns + SETTLED_NS < when_ns


class ModelFiles:
    """The files that one compilation reads: the model's own, and those of its external data by their locations.

    A file is watched before it is read. Its stamp notices a change, unless the file was changed just before: then its
    content is hashed at once, to be compared later.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _absolute(os.fsdecode(path))
        self.stamps: dict[str, Stamp] = {}
        self.begun_ns = time.time_ns()
        self._hashes: dict[str, str] = {}
        self._early: dict[str, str | None] = {}
        self.is_changed = False
        """Whether a file is known to have changed since it was watched."""

    def copy(self) -> ModelFiles:
        """The same watched files, for another compilation of what was read of them."""
        other = ModelFiles(self.path)
        other.begun_ns, other.is_changed = self.begun_ns, self.is_changed
        other.stamps, other._hashes, other._early = dict(self.stamps), dict(self._hashes), dict(self._early)
        return other

    def place(self, location: str) -> Path | None:
        """The path of a file, which need not exist; None if it is outside of the model's folders."""
        try:
            return file_beside(self.path, location) if location else self.path
        except (OSError, ValueError):
            return None

    def watch(self, location: str, stamp: Stamp | None) -> None:
        """Notice changes of a file from now on, whose stamp was taken at most when it began to be read."""
        if stamp is None or self.stamps.setdefault(location, stamp) != stamp:
            self.is_changed = True
        elif not stamp.is_settled(time.time_ns()) or may_be_written(self.place(location)):
            self._early[location] = self._hashed(location)

    def watch_read(self, statuses: Mapping[str, os.stat_result]) -> None:
        """Watch the files that were read now, as `engine.onnx.importer.read_with_statuses` tells of them."""
        if OWN not in self.stamps:
            self.is_changed = True
        for location, status in statuses.items():
            stamp = Stamp.of(status)
            if location in self.stamps:
                self.is_changed = self.is_changed or self.stamps[location] != stamp
            else:
                self.watch(location, stamp)

    def mapped(self, location: str) -> memoryview:
        """The content of a watched file, mapped. Raises `BlobError` if it is another file now."""
        path, expected = self.place(location), self.stamps.get(location)
        try:
            if path is None or expected is None:
                raise BlobError(f"`{location}` is not a file of the model {self.path}")
            with open(path, "rb", opener=lambda name, _: os.open(name, _READ)) as file:
                if Stamp.of(os.fstat(file.fileno())) != expected:
                    raise BlobError(f"{path} has changed")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as e:
            raise BlobError(f"{path} cannot be mapped: {e}") from e

    def hash_of(self, location: str) -> str | None:
        """The hash of a watched file's content; None if it is another file now. Computed once."""
        if location in self._early:
            return self._early[location]
        if location not in self._hashes:
            found = self._hashed(location)
            if found is None:
                return None
            self._hashes[location] = found
        return self._hashes[location]

    def unchanged_hashes(self) -> dict[str, str] | None:
        """The hashes of all watched files, which nothing has changed since; None if something has."""
        if self.is_changed:
            return None
        found = {location: self.hash_of(location) for location in self.stamps}
        # Of a file that was changed just before, only its content tells whether it was changed again.
        again = {location: self._hashed(location) for location in self._early}
        if again != self._early or not self.is_same():
            return None
        return {location: each for location, each in found.items() if each is not None} if all(found.values()) else None

    def is_unchanged(self) -> bool:
        """Whether nothing has changed a watched file since it was read."""
        return self.unchanged_hashes() is not None

    def may_be_written(self) -> bool:
        """Whether a process has a watched file open, or mapped, for writing: see `may_be_written`."""
        return any(may_be_written(self.place(location)) for location in self.stamps)

    @contextmanager
    def kept(self) -> Iterator[bool]:
        """While the block runs, who opens a watched file for writing waits, where the system can do that.

        What is mapped must not be read while another program shortens the file: that ends the process. Yields False if
        somebody has a file open for writing already.
        """
        with ExitStack() as stack:
            leases = [stack.enter_context(_Lease(self.place(location))) for location in self.stamps]
            yield not any(lease.has_writer for lease in leases)

    def is_same(self) -> bool:
        """Whether all watched files have their stamps now."""
        return not self.is_changed and all(
            Stamp.now(self.place(location)) == stamp for location, stamp in self.stamps.items()
        )

    def _hashed(self, location: str) -> str | None:
        return _hash_of_file(self.place(location), self.stamps[location])


def may_be_written(path: Path | None) -> bool:
    """Whether a process has a file open, or mapped, for writing.

    Writing to memory that is mapped gives a file a new time only when a page is first written to, on tmpfs once for
    all: such a file can change, and keep its stamp. False if that is not known: see `_Lease`.
    """
    with _Lease(path) as lease:
        return lease.has_writer


class _Lease:
    """A lease of a file for reading, which Linux grants if nobody has the file open, or mapped, for writing.

    While it is held, whoever opens the file for writing waits. There is none for the files of other users, on some file
    systems, and on other systems than Linux; such a file is taken to have no writer.
    """

    _SET_SIGNAL: Final = 10
    """F_SETSIG of Linux, which Python's `fcntl` does not name."""

    def __init__(self, path: Path | None) -> None:
        self.has_writer = False
        self._descriptor = -1
        if fcntl is None or path is None or not hasattr(fcntl, "F_SETLEASE"):
            return
        try:
            self._descriptor = os.open(path, _READ)
            # The kernel tells the holder that somebody waits, by SIGIO if nothing else is asked, which ends a process.
            fcntl.fcntl(self._descriptor, self._SET_SIGNAL, signal.SIGURG)
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            self.has_writer = True
        except (OSError, ValueError):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # which ends the lease


def _absolute(path: str) -> Path:
    """A path that stays the same when the working directory changes.

    It is not normalized: what is before a ".." may be a link.
    """
    try:
        return Path(path) if os.path.isabs(path) else Path(os.getcwd(), path)
    except OSError:  # the working directory was deleted
        return Path(path)


def _hash_of_file(path: Path | None, expected: Stamp) -> str | None:
    """SHA-256, in hex, of the hashes of a file's pieces of 4 MiB; None if it does not have its stamp all the time.

    The file is read, not mapped: truncating a mapped file would kill the process.
    """
    if path is None:
        return None
    try:
        descriptor = os.open(path, _READ)
    except (OSError, ValueError):
        return None
    try:
        if Stamp.of(os.fstat(descriptor)) != expected:
            return None
        starts = range(0, expected.size, _PIECE)
        most = min(_MAX_THREADS, os.cpu_count() or 1) if hasattr(os, "pread") else 1
        digests = in_threads(lambda start: _piece(descriptor, start), starts, most, "engine-hash")
        if Stamp.of(os.fstat(descriptor)) != expected:
            return None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return sha256(b"".join(digests)).hexdigest()


def _piece(descriptor: int, start: int) -> bytes:
    digest, end = sha256(), start + _PIECE
    while start < end:
        if hasattr(os, "pread"):
            data = os.pread(descriptor, min(_READ_BYTES, end - start), start)
        else:  # Windows; there is one thread
            os.lseek(descriptor, start, os.SEEK_SET)
            data = os.read(descriptor, min(_READ_BYTES, end - start))
        if not data:
            break
        digest.update(data)
        start += len(data)
    return digest.digest()
