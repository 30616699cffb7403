"""`BinaryCache`: a folder of compiled programs, shared by processes, that have been compiled and run safely."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from engine.files import CacheFolder, user_cache_folder

_log = logging.getLogger("engine.opencl")
_DIGEST: Final = hashlib.sha256().digest_size
_FORMAT: Final = "2"
"""The version of the file format: engine versions with other formats may use the same folder."""
_MAGIC: Final = f"engine-opencl-{_FORMAT}\n".encode()
_ENDING: Final = ".program"
MAX_BYTES: Final = 256 << 20
"""The limit for all files of a folder; the least recently used ones are removed."""
_LOOKS: Final = 8
"""The folder is scanned again after each of this many parts of the free bytes has been written."""
_ABANDONED_SECONDS: Final = 24 * 3600.0
"""Seconds after which an incomplete file is considered abandoned."""


def default_folder() -> Path:
    """The default folder for programs without CACHE_DIR: the user's cache folder."""
    return user_cache_folder("engine-opencl")


def sealed(key: str, binary: bytes) -> bytes:
    """A program in the form stored in files and blobs, with its key and a checksum."""
    return _MAGIC + _digest(key, binary) + binary


def unsealed(key: str, content: bytes) -> bytes | None:
    """The program of a key; None if the content is damaged or belongs to another key."""
    start = len(_MAGIC) + _DIGEST
    binary = content[start:]
    return binary if content[:start] == _MAGIC + _digest(key, binary) else None


def _digest(key: str, binary: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + binary).digest()


@cache
def binary_cache(folder: Path, *, is_shared: bool = False) -> BinaryCache:
    """The cache of a folder, one per process."""
    return BinaryCache(folder, is_shared=is_shared)


class BinaryCache:
    """Compiled programs by key. A program in the cache was compiled and run without a crash. Thread-safe.

    A damaged file is not an error: it is logged and ignored. An unwritable folder is logged. Unless `is_shared`, files
    that other users can change are neither read nor written: a program is code. Above `max_bytes`, the least recently
    used files are removed; a process about to read one compiles it again. The modification time of a file is the time
    of its last use.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, *, is_shared: bool = False) -> None:
        self.folder = folder
        self._cache = CacheFolder(folder, is_shared)
        self._told = ""
        self._max_bytes = max_bytes
        self._unseen_bytes = 0
        """The bytes that may be written before the folder is scanned again: other processes write to it too."""
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The program of a key; None if it is missing or damaged."""
        path = self._path(key)
        if (why := self._cache.refusal(path.name)) is not None:
            self._tell(why)
            return None
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            _log.warning("the cached OpenCL program %s cannot be read and is compiled again: %s", path, e)
            return None
        body = unsealed(key, content)
        if body is None:
            _log.warning("the cached OpenCL program %s is damaged and is compiled again", path)
            return None
        with suppress(OSError):  # owned by another user, or removed
            os.utime(path)
        return body

    def put(self, key: str, binary: bytes) -> None:
        """Store a program; readers see all of it or nothing. A failure to write is logged, not raised."""
        try:
            content = sealed(key, binary)
            with self._cache.file(self._path(key).name) as file:
                file.write(content)
            with self._lock:
                self._unseen_bytes -= len(content)
                if self._unseen_bytes < 0:
                    self._unseen_bytes = (self._max_bytes - self._make_room()) // _LOOKS
        except OSError as e:
            self._tell(str(e))

    def _tell(self, why: str) -> None:
        """Log why the folder cannot be used, once for many programs."""
        if why != self._told:
            self._told = why
            _log.warning(
                "compiled OpenCL programs cannot be cached in %s (%s); each process compiles them", self.folder, why
            )

    def _make_room(self) -> int:
        """Remove files down to three quarters of the limit, so that not every write requires a removal.

        Returns the bytes that remain.
        """
        files = sorted(self._files())
        total = sum(nbytes for _, nbytes, _ in files)
        if total <= self._max_bytes:
            return total
        for _, nbytes, path in files:
            if total <= self._max_bytes * 3 // 4:
                break
            with suppress(OSError):  # another process removes it too, or reads it (Windows)
                path.unlink()
                total -= nbytes
        return total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Last use, size and path of each file; removes abandoned incomplete files."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    if entry.name.endswith(_ENDING):
                        yield found.st_mtime, found.st_size, Path(entry.path)
                    elif f"{_ENDING}." in entry.name and time.time() - found.st_mtime > _ABANDONED_SECONDS:
                        Path(entry.path).unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.{_FORMAT}{_ENDING}"
