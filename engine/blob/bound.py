"""Sections that a blob does not contain: they are in another file, to which the blob is bound by their hashes.

The manifest's metadata then has `bound`: `{"file": NAME, "sections": [...]}`, with the name of the file when the blob
was exported, and for each section its name, size, SHA-256, and what finds it in the file. The file is a blob, whose
sections are found by hash and size, or another file of weights, such as a model; see `WeightsFile`.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from engine.blob.container import read_prologue
from engine.blob.manifest import MAX_SIZE, BlobManifest
from engine.blob.source import open_source
from engine.errors import BlobError, BlobFormatError
from engine.files.digest import sha256
from engine.startup import dataclass

MIN_BYTES: Final = 1024
"""Smaller sections are always in the blob."""
_KEY: Final = "bound"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class WeightsFile(ABC):
    """A file that has the content of sections. It is mapped, and never changed.

    Attributes:
        path: the file.
        is_used_in_place: whether sections are views of the file. If not, they are copied before they are verified,
            since another user could change the file afterwards.
        is_verified: whether the content is known to be what it was when the blob was exported, so that it is not hashed
            again.
    """

    path: str
    is_used_in_place: bool = True
    is_verified: bool = False

    def files(self) -> tuple[str, ...]:
        """All files that have content of sections. Raises `BlobError` if they cannot be known."""
        return (self.path,)

    @abstractmethod
    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """The place, as JSON values for `read`, of the bytes with this hash and size; None if they are not there."""

    def place_of(self, buffers: Sequence[memoryview]) -> tuple[str, Mapping[str, Any]] | None:
        """The hash of the bytes of `buffers`, and their place; None if they are not there."""
        digest = hash_of(buffers)
        place = self.find(digest, sum(map(len, buffers)))
        return None if place is None else (digest, place)

    @abstractmethod
    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """The bytes in a place that `find` returned, which are not yet verified. Raises `BlobError`."""


@dataclass(frozen=True, slots=True)
class BoundSection:
    """A section in another file, and its place there."""

    name: str
    size: int
    sha256: str
    place: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bound:
    """The sections that a blob does not contain, and the name that the file with them had."""

    file: str
    sections: tuple[BoundSection, ...]

    def to_metadata(self) -> dict[str, Any]:
        """The entry of the manifest's metadata."""
        listed = [{"name": s.name, "size": s.size, "sha256": s.sha256, "place": s.place} for s in self.sections]
        return {_KEY: {"file": self.file, "sections": listed}}

    @classmethod
    def of(cls, manifest: BlobManifest) -> Bound | None:
        """The bound sections of a manifest; None if the blob contains all its sections. Raises `BlobFormatError`."""
        entry: Any = manifest.metadata.get(_KEY)
        if entry is None:
            return None
        listed = entry.get("sections") if isinstance(entry, Mapping) else None
        if not isinstance(listed, list) or not isinstance(entry.get("file"), str):
            raise BlobFormatError(f"the manifest's metadata has an invalid {_KEY!r}: {entry!r:.80}")
        sections = tuple(_section(each) for each in listed)
        names = [*(section.name for section in manifest.sections), *(section.name for section in sections)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BlobFormatError(f"the manifest has two sections that are named {twice!r:.80}")
        return cls(entry["file"], sections)


def hash_of(buffers: Iterable[memoryview]) -> str:
    """SHA-256, in hex, of the bytes of buffers, one after the other."""
    digest = sha256()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


def why_not_bound(manifest: BlobManifest, weights: WeightsFile | None) -> str | None:
    """Why a blob has not all its sections, as a sentence; None if it has, or if a file with the others was passed."""
    bound = Bound.of(manifest)
    if bound is None:
        if weights is None:
            return None
        return f"the blob has all its weights; omit the file {weights.path}"
    if weights is None:
        return (
            f"the blob has no weights of its own; pass the file that they are in, which was `{bound.file}` when the "
            "blob was exported"
        )
    return None


class BlobWeights(WeightsFile):
    """The sections of another blob, such as the one of the same model for another configuration.

    Raises `BlobFormatError`, `BlobError` if the file is not a blob or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open_source(self.path, use_mmap=True) as source:
            prologue = read_prologue(source)
            source.read(prologue.padding)
            self._data = source.read(prologue.data_size)
        if Bound.of(prologue.manifest) is not None or "transform" in prologue.manifest.metadata:
            raise BlobError(
                f"{self.path}: a blob that is encrypted or has no weights of its own cannot provide weights"
            )
        self._sections = {(s.sha256, s.size): s for s in prologue.manifest.sections}

    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """Nothing but hash and size, if there is such a section."""
        return {} if (sha256, size) in self._sections else None

    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """The section with the hash of `place`."""
        section = self._sections.get((place.get("sha256", ""), size))
        if section is None:
            raise BlobError(f"{self.path} has no such section; pass the blob from which this one was exported")
        return self._data[section.offset : section.offset + section.size]


def _section(entry: Any) -> BoundSection:
    if (
        isinstance(entry, Mapping)
        and set(entry) == {"name", "size", "sha256", "place"}
        and isinstance(entry["name"], str)
        and type(entry["size"]) is int
        and 0 <= entry["size"] <= MAX_SIZE
        and isinstance(entry["sha256"], str)
        and _SHA256.fullmatch(entry["sha256"])
        and isinstance(entry["place"], Mapping)
    ):
        place = {**entry["place"], "sha256": entry["sha256"]}
        return BoundSection(entry["name"], entry["size"], entry["sha256"], place)
    raise BlobFormatError(f"the manifest's metadata has an invalid bound section: {entry!r:.80}")
