"""`FileIndex`: finds the entries of a cache by the files of a model, without reading the model.

There are three kinds of small JSON files beside the entries; each has its own name in it, so that none is taken for
another one:

- `HASH.file`, by the path of a model's file: the stamps of the model's files, and the hashes of their contents. It is
  trusted while all stamps are the same, if the files had settled when it was written.
- `SIZE-HASH.data`, by the content of a model's file: the locations of its external data. If no file of a size is known,
  none has to be hashed.
- `HASH.alias`: the entry of a model's content, if it is not the entry of this key itself.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from engine.core.model_files import OWN, ModelFiles, Stamp
from engine.files import CacheFolder
from engine.files.digest import sha256
from engine.startup import dataclass

_FORMAT: Final = 1
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES: Final = 1 << 20
_log = logging.getLogger("engine.cache")


@dataclass(frozen=True, slots=True)
class Content:
    """What the files of a model contain.

    Attributes:
        hashes: of each file, by its location.
        is_named_by_file: whether the model has no name of its own, so that the network has the file's.
    """

    hashes: Mapping[str, str]
    is_named_by_file: bool

    def key(self, files: ModelFiles, identity: Mapping[str, Any]) -> str:
        """SHA-256, in hex, of the content and of everything else that the network depends on."""
        name = files.path.stem if self.is_named_by_file else None
        return sha256(json.dumps([dict(identity), dict(self.hashes), name], sort_keys=True).encode()).hexdigest()


class FileIndex:
    """The index in the folder of a cache. Any number of processes may use it at once."""

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder

    def find(self, files: ModelFiles) -> Content | None:
        """The content of a model's files, if the cache knows it; all of them are watched then.

        Without a record of their stamps, their contents are hashed if the cache knows one of the same size.
        """
        own = Stamp.now(files.path)
        if own is None:
            return None
        files.watch(OWN, own)
        if files.is_changed:  # the model that was read is not the one in the file
            return None
        return self._by_stamps(files, own) or self._by_content(files, own)

    def entry(self, key: str) -> str:
        """The key of the entry of a content."""
        found = self._read(f"{key}.alias")
        entry = None if found is None else found.get("entry")
        return entry if isinstance(entry, str) and _HASH.fullmatch(entry) else key

    def write(self, files: ModelFiles, content: Content, key: str, entry: str) -> None:
        """Record the content of files that have been watched, and its entry. Raises `OSError`, `ValueError`."""
        locations = sorted(location for location in content.hashes if location != OWN)
        known = {"locations": locations, "is_named_by_file": content.is_named_by_file}
        self._write(_data_name(files.stamps[OWN], content.hashes[OWN]), known)
        if entry != key:
            self._write(f"{key}.alias", {"entry": entry})
        self._write_stamps(files, content)

    def _by_stamps(self, files: ModelFiles, own: Stamp) -> Content | None:
        record = self._read(_file_name(files))
        if record is None:
            return None
        try:
            written = int(record["written"])
            stamps = {str(location): Stamp(*map(int, stamp)) for location, stamp in record["stamps"].items()}
            content = _content(record["hashes"], record["is_named_by_file"])
            if stamps.keys() != content.hashes.keys():
                raise ValueError("there are hashes of other files")
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            _log.warning("the index file %s is damaged, and is not used: %s", _file_name(files), e)
            return None
        # After a clock has jumped back, a change may get the time of an earlier one.
        if stamps.get(OWN) != own or written > time.time_ns():
            return None
        found = {location: Stamp.now(files.place(location)) for location in stamps if location != OWN}
        if {OWN: own, **found} != stamps or not all(stamp.is_settled(written) for stamp in stamps.values()):
            return None
        for location, stamp in found.items():
            files.watch(location, stamp)
        return content

    def _by_content(self, files: ModelFiles, own: Stamp) -> Content | None:
        if not self._knows_size(own.size):
            return None
        own_hash = files.hash_of(OWN)
        record = None if own_hash is None else self._read(_data_name(own, own_hash))
        if own_hash is None or record is None:
            return None
        locations, is_named_by_file = record.get("locations"), record.get("is_named_by_file")
        if not isinstance(locations, list) or not all(isinstance(each, str) and each != OWN for each in locations):
            _log.warning("the index file %s is damaged, and is not used", _data_name(own, own_hash))
            return None
        for location in locations:
            stamp = Stamp.now(files.place(location))
            if stamp is None:  # which reading the model reports
                return None
            files.watch(location, stamp)
        hashes = files.unchanged_hashes()
        if hashes is None:
            return None
        content = Content(hashes, bool(is_named_by_file))
        with suppress(OSError, ValueError):  # the next process hashes them again
            self._write_stamps(files, content)
        return content

    def _knows_size(self, size: int) -> bool:
        try:
            names = os.listdir(self._folder.path)
        except (OSError, ValueError):
            return False
        return any(name.startswith(f"{size}-") and name.endswith(".data") for name in names)

    def _write_stamps(self, files: ModelFiles, content: Content) -> None:
        """Record the stamps of files. What changes one of them after `written` gives it another stamp."""
        written = time.time_ns()
        if files.is_same() and not files.may_be_written():
            about = {"hashes": dict(content.hashes), "is_named_by_file": content.is_named_by_file}
            self._write(_file_name(files), {"written": written, "stamps": files.stamps, **about})

    def _read(self, name: str) -> dict[str, Any] | None:
        """A record; None if there is none that can be used."""
        path = self._folder.path / name
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except (OSError, ValueError):
            return None
        try:
            if (why := self._folder.refusal(name)) is not None:
                raise ValueError(why)
            record = json.loads(data)
            if not isinstance(record, dict) or record.get("format") != _FORMAT or record.get("name") != name:
                raise ValueError("it is of another format, or was another file")
        except (ValueError, RecursionError) as e:
            _log.warning("the index file %s is not used: %s", path, e)
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used are deleted first
        return record

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        with self._folder.file(name) as file:
            file.write(json.dumps({"format": _FORMAT, "name": name, **record}).encode())


def _content(hashes: Any, is_named_by_file: Any) -> Content:
    found = {str(location): str(each) for location, each in hashes.items()}
    if not all(map(_HASH.fullmatch, found.values())) or not isinstance(is_named_by_file, bool):
        raise ValueError("its hashes are none")
    return Content(found, is_named_by_file)


def _file_name(files: ModelFiles) -> str:
    return f"{sha256(os.fsencode(files.path)).hexdigest()}.file"


def _data_name(own: Stamp, own_hash: str) -> str:
    return f"{own.size}-{own_hash}.data"
