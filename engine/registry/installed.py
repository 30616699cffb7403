"""`InstalledEntryPoints`: what installed distributions register for the engine: plugins, extensions, commands.

Folders are read here, since `importlib.metadata` takes 25 ms to import, a quarter of what `engine --help` takes. It is
asked for what is installed in other ways: archives, eggs, finders of others.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from typing import Any, Final, TypeAlias

from engine.startup import dataclass

PREFIX: Final = "engine."
"""The groups of entry points that are read begin with it."""

_TARGET: Final = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attributes>[\w.]+)\s*)?(\[.*\]\s*)?")
_log = logging.getLogger("engine.registry")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A name in a group, and the module, or the object in it, that a distribution registers by it."""

    name: str
    value: str
    group: str

    def load(self) -> Any:
        """Import the object. Raises what the import raises, `ValueError` for a malformed value."""
        match = _TARGET.fullmatch(self.value)
        if match is None:
            raise ValueError(f'expected "module" or "module:name"; got {self.value!r}')
        found: Any = importlib.import_module(match["module"])
        for attribute in filter(None, (match["attributes"] or "").split(".")):
            found = getattr(found, attribute)
        return found


DistributionEntries: TypeAlias = tuple[str, list[EntryPoint]]
"""A distribution as "name version", and its entry points of one group."""


class InstalledEntryPoints:
    """The entry points of the environment, which are found once, when they are first needed. Nothing is imported."""

    def __init__(self) -> None:
        self._found: list[DistributionEntries] | None = None
        self._lock = threading.Lock()

    def of(self, group: str) -> Iterator[DistributionEntries]:
        """Each distribution with entry points of a group, once: if `sys.path` has two, the first is used."""
        found = self._found
        if found is None:
            with self._lock:
                if self._found is None:
                    self._found = list(_distributions())
                found = self._found
        for distribution, entries in found:
            if chosen := [entry for entry in entries if entry.group == group]:
                yield distribution, chosen

    def renew_lock(self) -> None:
        """Become usable in a child process, even if a thread of the parent was searching."""
        self._lock = threading.Lock()


def _distributions() -> Iterator[DistributionEntries]:
    seen: set[str] = set()
    for place in _places():
        # Caught per distribution: damaged metadata of one must not hide the entry points of the others.
        try:
            name, version, entry_points = place.read()
        except Exception:
            _log.warning("the metadata of an installed distribution (%s) is damaged", place, exc_info=True)
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()
        if entry_points and key not in seen:
            seen.add(key)
            yield f"{name} {version}", entry_points


def _places() -> Iterator[_Folder | _Other]:
    """Where the metadata of each distribution is, in the order of `sys.path`."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        yield from _others(None)
        return
    for path in sys.path:
        if path.endswith(".egg") or os.path.isfile(path):
            yield from _others([path])
            continue
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                yield _Folder(os.path.join(path, name))


def _others(path: list[str] | None) -> Iterator[_Other]:
    from importlib import metadata

    found = metadata.distributions() if path is None else metadata.distributions(path=path)
    yield from map(_Other, found)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder with metadata of a distribution."""

    path: str

    def read(self) -> tuple[str, str, list[EntryPoint]]:
        """The name, the version, and the entry points of the engine's groups."""
        try:
            with open(os.path.join(self.path, "entry_points.txt"), encoding="utf-8") as file:
                entry_points = list(_parsed(file))
        except (FileNotFoundError, NotADirectoryError):
            entry_points = []
        if not entry_points:
            return "", "", []
        header = {"name": "", "version": ""}
        for each in ("METADATA", "PKG-INFO"):
            if os.path.exists(file_path := os.path.join(self.path, each)):
                with open(file_path, encoding="utf-8") as file:
                    header |= _header(file)
                break
        return header["name"] or "a distribution without a name", header["version"] or "?", entry_points

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class _Other:
    """A distribution that `importlib.metadata` has found."""

    distribution: object

    def read(self) -> tuple[str, str, list[EntryPoint]]:
        """As that of a folder."""
        from importlib import metadata

        assert isinstance(self.distribution, metadata.Distribution)
        found = [each for each in self.distribution.entry_points if each.group.startswith(PREFIX)]
        if not found:
            return "", "", []
        name, version = self.distribution.name or "a distribution without a name", self.distribution.version or "?"
        return name, version, [EntryPoint(each.name, each.value, each.group) for each in found]

    def __str__(self) -> str:
        return str(self.distribution)


def _parsed(lines: Iterable[str]) -> Iterator[EntryPoint]:
    """The entry points of the engine's groups in an `entry_points.txt`, read as `importlib.metadata` reads it."""
    group = ""
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group.startswith(PREFIX):
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"expected NAME = VALUE in [{group}]; got {line!r:.80}")
            yield EntryPoint(name.strip(), value.strip(), group)


def _header(lines: Iterable[str]) -> dict[str, str]:
    """The name and the version in the headers of a `METADATA`."""
    found: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            found.setdefault(key.lower(), value.strip())
    return found
