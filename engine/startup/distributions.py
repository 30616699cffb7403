"""The metadata of installed distributions, read from their folders.

`importlib.metadata` takes 15 ms to import. It is asked for what is installed in other ways: archives, eggs, finders of
others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Protocol

from engine.startup.classes import dataclass


class Metadata(Protocol):
    """The metadata of a distribution: a folder, or what `importlib.metadata` has found."""

    def read_text(self, filename: str) -> str | None:
        """The text of one of its files; None if there is no such file."""


@dataclass(frozen=True, slots=True)
class MetadataFolder:
    """A folder with the metadata of a distribution."""

    path: str

    def read_text(self, filename: str) -> str | None:
        """The text of one of its files; None if there is no such file."""
        try:
            with open(os.path.join(self.path, filename), encoding="utf-8") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def __str__(self) -> str:
        return self.path


def installed_metadata() -> Iterator[Metadata]:
    """The metadata of each distribution, in the order of `sys.path`; a distribution may be there twice."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        yield from _found_by_importlib(None)
        return
    for path in sys.path:
        if path.endswith(".egg") or os.path.isfile(path):
            yield from _found_by_importlib([path])
            continue
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                yield MetadataFolder(os.path.join(path, name))


def name_and_version(metadata: Metadata) -> tuple[str, str]:
    """The name and the version that metadata states; "" for one that it does not."""
    found: dict[str, str] = {}
    text = metadata.read_text("METADATA") or metadata.read_text("PKG-INFO") or ""
    for line in text.splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            found.setdefault(key.lower(), value.strip())
    return found.get("name", ""), found.get("version", "")


def installed_versions(*names: str) -> dict[str, str]:
    """The versions of those of the distributions that are installed."""
    wanted = {normalized(name): name for name in names}
    found: dict[str, str] = {}
    for metadata in installed_metadata():
        if isinstance(metadata, MetadataFolder):  # named for its distribution
            stated = os.path.basename(metadata.path).rpartition(".")[0].partition("-")[0]
        else:
            stated, _ = name_and_version(metadata)
        name = wanted.get(normalized(stated))
        if name is not None and name not in found:
            found[name] = name_and_version(metadata)[1]
    return {name: found[name] for name in names if name in found}


def normalized(name: str) -> str:
    """The name of a distribution in the form in which equal names are equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _found_by_importlib(path: list[str] | None) -> Iterator[Metadata]:
    from importlib import metadata

    yield from metadata.distributions() if path is None else metadata.distributions(path=path)
