"""`CompileCache`: compiled networks in a folder, keyed by the hash of everything that a compilation depends on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from engine.blob import BlobReader, WeightsFile
from engine.errors import BlobError, EngineError
from engine.files import CacheFolder, user_cache_folder
from engine.plugin_api import ExecutableNetwork
from engine.startup import dataclass

VARIABLE: Final = "ENGINE_CACHE_DIR"
"""The folder for networks of models in files without CACHE_DIR; if empty, these networks are not cached."""
LOADED_NS: Final = time.time_ns()
"""When this process loaded the engine's code, which it does not load again."""
_SUFFIX: Final = ".blob"
_KEY: Final = "cache_key"
_INDEX: Final = r"[0-9a-f]{64}\.(?:file|alias)|\d+-[0-9a-f]{64}\.data"
"""The names of the files of `FileIndex`."""
# No other file is deleted: the folder may have other uses.
_ENTRY: Final = re.compile(rf"[0-9a-f]{{64}}\.blob|{_INDEX}")
_TEMPORARY: Final = re.compile(rf"\.(?:[0-9a-f]{{32}}|(?:{_INDEX})\.\d+\.[0-9a-f]+)\.tmp")
# Longer than any export takes: an older temporary file was left by a process that died while writing.
_ABANDONED_SECONDS: Final = 24 * 3600.0
# Programs that make a file for each model leave as many files of the index, which take too few bytes for the limit.
_FORGOTTEN_SECONDS: Final = 30 * 24 * 3600.0
_log = logging.getLogger("engine.cache")
_said: set[str] = set()
"""The folders of the user whose problems this process has logged."""


def user_cache() -> str | None:
    """The folder for networks of models in files, which may not exist; None if the user wants none."""
    stated = os.environ.get(VARIABLE)
    return stated if stated is not None else str(user_cache_folder("engine-networks"))


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The networks in a folder: their number, and the size in bytes of all files of the cache."""

    folder: str
    networks: int
    byte_size: int


class CompileCache:
    """The folder CACHE_DIR. Any number of threads and processes may use one folder at once.

    An entry is written atomically and never changed. Its manifest, whose hash is checked, has the entry's key, so that
    no other network is loaded if files are exchanged. Problems with the folder never keep a model from being compiled:
    they are logged as warnings to "engine.cache"; those of a folder that the user did not ask for once, as information.

    Args:
        folder: created if it does not exist; only the user can change it, see `CacheFolder`.
        max_bytes: after a network is stored, the least recently used entries are deleted until all entries
            together take at most this many bytes; a larger one is not stored. 0 means no limit.
        is_shared: whether others may change it.
        is_stated: whether the user has set CACHE_DIR.
    """

    def __init__(self, folder: str, max_bytes: int = 0, *, is_shared: bool = False, is_stated: bool = True) -> None:
        self.folder = os.path.abspath(folder)
        self.max_bytes = max_bytes
        self.is_stated = is_stated
        self.files = CacheFolder(Path(self.folder), is_shared)

    def is_usable(self) -> bool:
        """Whether the folder can be used, or made; the problem is logged."""
        try:
            self.files.make()
        except (OSError, ValueError) as e:  # ValueError: a path with a null byte
            self.complain("networks are not cached: %s", e)
            return False
        return True

    def load(
        self, key: str, load: Callable[[BlobReader], ExecutableNetwork], weights: WeightsFile | None = None
    ) -> ExecutableNetwork | None:
        """Return the network of `key` as `load` reads it from its entry, mapped; None if there is no usable entry.

        A file for which `load` raises an `EngineError` is unusable; the next `store` replaces it. `weights` has the
        sections that entries with such a file were stored without.
        """
        path = self._path(key)
        if not os.path.lexists(path):
            return None
        try:
            network = load(self._opened(path, key, weights))
        except EngineError as e:
            _log.warning("cache entry %s cannot be used; the model is compiled again: %s", path, e)
            return None
        network.loaded_from_cache = True
        with contextlib.suppress(OSError):
            os.utime(path)  # `_prune` orders entries by it
        return network

    def store(
        self,
        key: str,
        network: ExecutableNetwork,
        metadata: Mapping[str, Any],
        weights: WeightsFile | None = None,
    ) -> bool:
        """Store the network of `key`, then delete the entries that exceed `max_bytes`. Returns whether it is stored.

        `metadata` is for the manifest; sections that `weights` has are not stored.
        """
        try:
            self.files.make()
            writer = network.blob_writer({**metadata, _KEY: key})
            if weights is not None:
                writer = writer.bound_to(weights, is_required=False)
            if 0 < self.max_bytes < writer.byte_size:
                what = "the network `%s` is not cached: it takes %d bytes, more than CACHE_MAX_BYTES, %d"
                _log.info(what, network.name, writer.byte_size, self.max_bytes)
                self.prune()
                return False
            # An entry that is damaged, as after a loss of power, is compiled again: it need not be on the disk.
            writer.write_file(self._path(key), is_private=not self.files.is_shared, is_synced=False)
        except (EngineError, OSError, ValueError) as e:  # ValueError: a path with a null byte
            self.complain("the network `%s` is not cached: %s", network.name, e)
            return False
        self.prune()
        return True

    def remove(self, key: str) -> None:
        """Delete an entry."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(key))

    def was_stored_since(self, key: str, when_ns: int) -> bool:
        """Whether an entry was stored or used since then, by another process."""
        try:
            return os.stat(self._path(key)).st_mtime_ns > when_ns
        except (OSError, ValueError):
            return False

    def contents(self) -> CacheContents:
        """The number of entries, and the size of all files of the cache."""
        found = list(self._files())
        networks = sum(file.path.endswith(_SUFFIX) for file in found)
        return CacheContents(self.folder, networks, sum(file.size for file in found))

    def clear(self) -> CacheContents:
        """Delete all files of the cache; processes that have loaded an entry keep it. Returns what was deleted."""
        networks = byte_size = 0
        for file in self._files():
            with contextlib.suppress(OSError):
                os.unlink(file.path)
                networks += file.path.endswith(_SUFFIX)
                byte_size += file.size
        return CacheContents(self.folder, networks, byte_size)

    def complain(self, what: str, *about: object) -> None:
        """Log a problem with the folder."""
        if self.is_stated:
            _log.warning(what, *about)
        elif self.folder not in _said:
            _said.add(self.folder)
            _log.info(what, *about)

    def _opened(self, path: str, key: str, weights: WeightsFile | None) -> BlobReader:
        if (why := self.files.refusal(os.path.basename(path))) is not None:
            raise BlobError(why)
        reader = BlobReader(path, mmap=True, weights=weights)
        if (found := reader.manifest.metadata.get(_KEY)) != key:
            raise BlobError(f"it is the entry of another compilation: its key is {found!r:.80}, expected {key!r}")
        return reader

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key + _SUFFIX)

    def prune(self) -> None:
        """Delete the least recently used entries that exceed `max_bytes`, and files of the index that nobody uses."""
        now = time.time()
        entries = sorted(self._files(), key=lambda entry: entry.used, reverse=True)
        total = 0
        for entry in entries:
            if entry.is_temporary:
                is_due = now - entry.used > _ABANDONED_SECONDS
            elif not entry.path.endswith(_SUFFIX) and now - entry.used > _FORGOTTEN_SECONDS:
                is_due = True
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
