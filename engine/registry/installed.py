"""`InstalledEntryPoints`: what installed distributions register for the engine: plugins, extensions, commands."""

from __future__ import annotations

import importlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from engine.startup import dataclass
from engine.startup.distributions import Metadata, installed_metadata, name_and_version, normalized

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
    for metadata in installed_metadata():
        # Caught per distribution: damaged metadata of one must not hide the entry points of the others.
        try:
            entry_points = list(_entry_points(metadata))
            name, version = name_and_version(metadata) if entry_points else ("", "")
        except Exception:
            _log.warning("the metadata of an installed distribution (%s) is damaged", metadata, exc_info=True)
            continue
        key = normalized(name)
        if entry_points and key not in seen:
            seen.add(key)
            yield f"{name or 'a distribution without a name'} {version or '?'}", entry_points


def _entry_points(metadata: Metadata) -> Iterator[EntryPoint]:
    """The entry points of the engine's groups, read as `importlib.metadata` reads them."""
    group = ""
    for line in map(str.strip, (metadata.read_text("entry_points.txt") or "").splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group.startswith(PREFIX):
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"expected NAME = VALUE in [{group}]; got {line!r:.80}")
            yield EntryPoint(name.strip(), value.strip(), group)
