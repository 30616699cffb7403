"""`BinaryCache`: compiled programs in a folder, which processes share and which tell what is known to be safe."""

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

from engine.files import complete_file

_log = logging.getLogger("engine.opencl")
_DIGEST: Final = hashlib.sha256().digest_size
_FORMAT: Final = "2"
"""Of what files hold: versions of the engine with other formats may use the same folder."""
_MAGIC: Final = f"engine-opencl-{_FORMAT}\n".encode()
_ENDING: Final = ".program"
MAX_BYTES: Final = 256 << 20
"""Of all files of a folder; what was not used for longest makes room."""
_LOOKS: Final = 8
"""Into how many parts the free bytes are divided, after each of which the folder is looked at, file by file."""
_ABANDONED_SECONDS: Final = 24 * 3600.0
"""After which nobody writes to an incomplete file any more."""


def default_folder() -> Path:
    """Where programs are kept unless CACHE_DIR says otherwise: this user's folder for what can be made anew."""
    stated = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(stated) if stated else Path.home() / ".cache") / "engine-opencl"
    except RuntimeError:  # a user without a home: a folder that nobody can make
        return Path(os.devnull) / "engine-opencl"


def sealed(key: str, binary: bytes) -> bytes:
    """A program as files and blobs keep it: no other, and none of another key, is taken for it by accident."""
    return _MAGIC + _digest(key, binary) + binary


def unsealed(key: str, content: bytes) -> bytes | None:
    """The program of a key; None where the content is damaged, or that of another key."""
    start = len(_MAGIC) + _DIGEST
    binary = content[start:]
    return binary if content[:start] == _MAGIC + _digest(key, binary) else None


def _digest(key: str, binary: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + binary).digest()


@cache
def binary_cache(folder: Path) -> BinaryCache:
    """The cache of a folder, one for the process."""
    return BinaryCache(folder)


class BinaryCache:
    """What a device compiled, by key. A file that is there was compiled, and ran, without harm. Thread-safe.

    A damaged file is not an error: it is logged and taken as absent. A folder that cannot be written to is logged.
    Of more than `max_bytes`, what was not used for longest is removed; a process that is about to read it compiles
    it again. A file's time says when it was used last.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._unseen_bytes = 0
        """How much may be put before looking at the folder again: others put files there, too."""
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The program of a key; None where there is none, or a damaged one."""
        path = self._path(key)
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
        with suppress(OSError):  # of another user, or removed
            os.utime(path)
        return body

    def put(self, key: str, binary: bytes) -> None:
        """Keep a program, whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = sealed(key, binary)
            with complete_file(self._path(key)) as file:
                file.write(content)
            with self._lock:
                self._unseen_bytes -= len(content)
                if self._unseen_bytes < 0:
                    self._unseen_bytes = (self._max_bytes - self._make_room()) // _LOOKS
        except OSError as e:
            _log.warning(
                "compiled OpenCL programs cannot be cached in %s (%s); each process compiles them", self.folder, e
            )

    def _make_room(self) -> int:
        """Remove files down to three quarters of what is allowed, so that not every program costs a removal.

        Returns the bytes that are left.
        """
        files = sorted(self._files())
        total = sum(nbytes for _, nbytes, _ in files)
        if total <= self._max_bytes:
            return total
        for _, nbytes, path in files:
            if total <= self._max_bytes * 3 // 4:
                break
            with suppress(OSError):  # another process removes it, too, or reads it (Windows)
                path.unlink()
                total -= nbytes
        return total

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """When each was used last, its bytes, and where it is; what was never completed goes at once."""
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
