"""Sections that are stored in another form, such as encrypted: what makes the form, and what restores the content.

The manifest's metadata then has `transform`: `{"name": ..., "id": ...}`. `name` says what restores the sections, with
the id of its key; `id` is random for each blob. Hashes in the manifest are those of the stored form, so that damage is
found, and a signature verified, without a key. The manifest itself is not transformed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.blob.manifest import BlobManifest, encode_manifest
from engine.blob.source import Buffer
from engine.digest import sha256
from engine.errors import BlobError, BlobTransformError

_KEY: Final = "transform"
_ID_BYTES: Final = 16


class SectionTransform(ABC):
    """What a blob's sections go through when they are written and read: a cipher, or a compression.

    Attributes:
        name: what the manifest says; an import needs a transform of the same name. The name of a cipher includes the id
            of its key, never the key.
    """

    name: str

    @abstractmethod
    def apply(self, data: memoryview, context: bytes) -> Buffer:
        """The form of a section that is stored.

        `context` is different for each section of each blob, and the same when the section is read: a cipher
        authenticates it, so that no section can take the place of another, and no manifest that of another.
        """

    @abstractmethod
    def restore(self, data: memoryview, context: bytes) -> Buffer:
        """The content of a stored section. Raises `BlobTransformError` if this transform has not made it."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """The transform that a manifest names, and the context of its sections."""

    name: str
    context: bytes

    @staticmethod
    def record(manifest: BlobManifest, transform: SectionTransform) -> BlobManifest:
        """The manifest of a blob whose sections go through `transform`."""
        entry = {"name": transform.name, "id": os.urandom(_ID_BYTES).hex()}
        return replace(manifest, metadata={**manifest.metadata, _KEY: entry})

    @classmethod
    def of(cls, manifest: BlobManifest) -> Transformed | None:
        """What a manifest says; None if its sections are stored as they are. Raises `BlobTransformError`."""
        entry: Any = manifest.metadata.get(_KEY)
        if entry is None:
            return None
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise BlobTransformError(f"the manifest's metadata has an invalid {_KEY!r}: {entry!r:.80}")
        return cls(entry["name"], sha256(encode_manifest(replace(manifest, sections=()))).digest())

    def of_section(self, name: str) -> bytes:
        """The context of a section."""
        return self.context + name.encode()


def why_not_restored(manifest: BlobManifest, transform: SectionTransform | None) -> str | None:
    """Why `transform` does not restore a blob's sections, as a sentence; None if it does, or if none is needed."""
    found = Transformed.of(manifest)
    if found is None:
        if transform is None:
            return None
        return f"the blob is stored as it is, and not by {transform.name!r}; omit the key or the transform"
    if transform is None:
        return f"the blob is stored by {found.name!r}; pass the key or the transform with which it was exported"
    if transform.name != found.name:
        return f"the blob is stored by {found.name!r}; the key or the transform that was passed is {transform.name!r}"
    return None


def applied(transform: SectionTransform, data: memoryview, context: bytes) -> Buffer:
    """`transform.apply`, whose errors are `BlobError`s."""
    try:
        return transform.apply(data, context)
    except BlobError:
        raise
    except Exception as e:
        raise BlobTransformError(f"the transform {transform.name!r} failed: {type(e).__name__}: {e}") from e


def restored(transform: SectionTransform, data: memoryview, context: bytes) -> Buffer:
    """`transform.restore`, whose errors are `BlobTransformError`s."""
    try:
        content = transform.restore(data, context)
    except BlobError:
        raise
    except Exception as e:
        raise BlobTransformError(f"the transform {transform.name!r} failed: {type(e).__name__}: {e}") from e
    try:
        memoryview(content)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as e:
        kind = type(content).__name__
        raise BlobTransformError(f"the transform {transform.name!r} restored no bytes: it returned {kind}") from e
    return content
