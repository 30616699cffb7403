"""`CompileCache`: compiled networks in a folder, keyed by the hash of everything that a compilation depends on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from engine.blob import BlobReader
from engine.errors import BlobError, EngineError
from engine.files import CacheFolder
from engine.plugin_api import ExecutableNetwork
from engine.startup import dataclass

_SUFFIX: Final = ".blob"
_KEY: Final = "cache_key"
# No other file is deleted: the folder may have other uses.
_ENTRY: Final = re.compile(r"[0-9a-f]{64}\.blob")
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{32}\.tmp")
# Longer than any export takes: an older temporary file was left by a process that died while writing.
_ABANDONED_SECONDS: Final = 24 * 3600.0
_log = logging.getLogger("engine.cache")


class CompileCache:
    """The folder CACHE_DIR. Any number of threads and processes may use one folder at once.

    An entry is written atomically and never changed. Its manifest, whose hash is checked, has the entry's key, so that
    no other network is loaded if files are exchanged. Problems with the folder never keep a model from being compiled:
    they are logged as warnings to "engine.cache".

    Args:
        folder: created if it does not exist; only the user can change it, see `CacheFolder`.
        is_shared: whether others may change it.
        max_bytes: after a network is stored, the least recently used entries are deleted until all entries
            together take at most this many bytes; 0 means no limit.
    """

    def __init__(self, folder: str, max_bytes: int = 0, *, is_shared: bool = False) -> None:
        self.folder = os.path.abspath(folder)
        self.max_bytes = max_bytes
        self._cache = CacheFolder(Path(self.folder), is_shared)

    def load(self, key: str, load: Callable[[BlobReader], ExecutableNetwork]) -> ExecutableNetwork | None:
        """Return the network of `key` as `load` reads it from its entry, mapped; None if there is no usable entry.

        A file for which `load` raises an `EngineError` is unusable; the next `store` replaces it.
        """
        path = self._path(key)
        if not os.path.lexists(path):
            return None
        try:
            network = load(self._opened(path, key))
        except EngineError as e:
            _log.warning("cache entry %s cannot be used; the model is compiled again: %s", path, e)
            return None
        network.loaded_from_cache = True
        with contextlib.suppress(OSError):
            os.utime(path)  # `_prune` orders entries by it
        return network

    def store(self, key: str, network: ExecutableNetwork) -> None:
        """Store the network of `key`, then delete the entries that exceed `max_bytes`."""
        try:
            self._cache.make()
            network.blob_writer({_KEY: key}).write_file(self._path(key), is_private=not self._cache.is_shared)
        except (EngineError, OSError, ValueError) as e:  # ValueError: a path with a null byte
            _log.warning("the network `%s` is not cached: %s", network.name, e)
            return
        self._prune()

    def _opened(self, path: str, key: str) -> BlobReader:
        if (why := self._cache.refusal(os.path.basename(path))) is not None:
            raise BlobError(why)
        reader = BlobReader(path, mmap=True)
        if (found := reader.manifest.metadata.get(_KEY)) != key:
            raise BlobError(f"it is the entry of another compilation: its key is {found!r:.80}, expected {key!r}")
        return reader

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key + _SUFFIX)

    def _prune(self) -> None:
        now = time.time()
        entries = sorted(self._files(), key=lambda entry: entry.used, reverse=True)
        total = 0
        for entry in entries:
            if entry.is_temporary:
                is_due = now - entry.used > _ABANDONED_SECONDS
            else:
                total += entry.size
                is_due = 0 < self.max_bytes < total
            if is_due:
                _log.info("cache entry %s is deleted, last used %.0f s ago", entry.path, now - entry.used)
                with contextlib.suppress(OSError):  # another process was first, or has the file open
                    os.unlink(entry.path)

    def _files(self) -> Iterator[_File]:
        with contextlib.suppress(OSError), os.scandir(self.folder) as files:
            for file in files:
                is_temporary = _TEMPORARY.fullmatch(file.name) is not None
                if is_temporary or _ENTRY.fullmatch(file.name):
                    with contextlib.suppress(OSError):  # another process deleted it
                        status = file.stat(follow_symlinks=False)
                        yield _File(file.path, is_temporary, status.st_size, status.st_mtime)


@dataclass(frozen=True, slots=True)
class _File:
    """`used`: when it was last stored or loaded, in seconds since the epoch."""

    path: str
    is_temporary: bool
    size: int
    used: float
