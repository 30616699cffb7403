"""`InstalledEntryPoints`: what installed distributions register for the engine: plugins, and extension operators."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Final, TypeAlias

PREFIX: Final = "engine."
"""The groups of entry points that are read begin with it."""

DistributionEntries: TypeAlias = "tuple[str, list[metadata.EntryPoint]]"
"""A distribution as "name version", and its entry points of one group."""

_log = logging.getLogger("engine.registry")


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
    for distribution in metadata.distributions():
        # Caught per distribution: damaged metadata of one must not hide the entry points of the others.
        try:
            entry_points = [e for e in distribution.entry_points if e.group.startswith(PREFIX)]
            if not entry_points:
                continue
            name, version = distribution.name or "a distribution without a name", distribution.version or "?"
        except Exception:
            _log.warning("the metadata of an installed distribution (%s) is damaged", distribution, exc_info=True)
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in seen:
            seen.add(key)
            yield f"{name} {version}", entry_points
