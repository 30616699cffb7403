"""Sections that are stored in another form, such as encrypted: the function that makes this form, and the one that
restores the content.

The manifest's metadata then has `transform`: `{"name": ..., "id": ..., "seal": ...}`. `name` says what restores the
sections, with the id of its key; `id` is random for each blob. Hashes in the manifest are of the stored form, so that
damage is found, and a signature verified, without a key. The manifest itself is not transformed. Its `seal` is the
transform's form of the manifest's SHA-256, taken with an empty seal: a cipher so authenticates the whole manifest, with
the list of sections and the hashes of those in another file.

Transformed blobs of the format versions 1 and 2 have no seal. Each of their sections authenticates the manifest without
its list of sections, so one is restored before anything is used; a blob without any is refused, since nothing in it
needs the key.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.blob.manifest import BlobManifest, encode_manifest
from engine.blob.source import Buffer
from engine.errors import BlobError, BlobTransformError
from engine.files.digest import sha256
from engine.startup import dataclass

_KEY: Final = "transform"
_SEAL: Final = "seal"
_ID_BYTES: Final = 16
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})*")


class SectionTransform(ABC):
    """The transform of a blob's sections when they are written and read: a cipher, or a compression.

    Attributes:
        name: the name in the manifest; an import needs a transform of the same name. The name of a cipher includes
            the id of its key, never the key.
    """

    name: str

    @abstractmethod
    def apply(self, data: memoryview, context: bytes) -> Buffer:
        """The form of a section that is stored.

        `context` is different for each section of each blob, and the same when the section is read: a cipher
        authenticates it, so that no section, and no manifest, can take the place of another.
        """

    @abstractmethod
    def restore(self, data: memoryview, context: bytes) -> Buffer:
        """The content of a stored section. Raises `BlobTransformError` if this transform has not made it."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """The transform that a manifest names, the context of its sections, and its seal; None if it has none."""

    name: str
    context: bytes
    seal: bytes | None = None

    @staticmethod
    def record(manifest: BlobManifest, transform: SectionTransform) -> BlobManifest:
        """The manifest of a blob whose sections go through `transform`, with an empty seal."""
        entry = {"name": transform.name, "id": os.urandom(_ID_BYTES).hex(), _SEAL: ""}
        return replace(manifest, metadata={**manifest.metadata, _KEY: entry})

    @classmethod
    def of(cls, manifest: BlobManifest) -> Transformed | None:
        """The transform that a manifest states; None if there is none. Raises `BlobTransformError`."""
        entry: Any = manifest.metadata.get(_KEY)
        if entry is None:
            return None
        seal = entry.get(_SEAL) if isinstance(entry, Mapping) else None
        is_valid = isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
        if not is_valid or (is_sealed(manifest) and not (isinstance(seal, str) and _HEX.fullmatch(seal))):
            raise BlobTransformError(f"the manifest's metadata has an invalid {_KEY!r}: {entry!r:.80}")
        context = sha256(encode_manifest(replace(_with_seal(manifest, ""), sections=()))).digest()
        return cls(entry["name"], context, None if seal is None else bytes.fromhex(seal))

    def of_section(self, name: str) -> bytes:
        """The context with which a section is stored and restored."""
        return self.context + name.encode()


def is_sealed(manifest: BlobManifest) -> bool:
    """Whether a manifest has a seal, as in the format versions 3, 4, 7 and 8."""
    entry = manifest.metadata.get(_KEY)
    return isinstance(entry, Mapping) and _SEAL in entry


def is_transformed(manifest: BlobManifest) -> bool:
    """Whether a manifest says that sections are stored by a transform."""
    return manifest.metadata.get(_KEY) is not None


def sealed(manifest: BlobManifest, transform: SectionTransform) -> BlobManifest:
    """A complete manifest that `Transformed.record` has begun, with its seal. Raises `BlobTransformError`."""
    found = Transformed.of(manifest)
    assert found is not None
    stored = applied(transform, memoryview(_sealed_digest(manifest)), found.of_section(""))  # no section has this name
    return _with_seal(manifest, bytes(stored).hex())


def why_not_authentic(manifest: BlobManifest, transform: SectionTransform) -> str | None:
    """Why the seal of a manifest differs from the one that `transform` makes, as a sentence; None if it does not, or if
    there is no transform.
    """
    import hmac  # it imports hashlib, which takes milliseconds

    found = Transformed.of(manifest)
    if found is None or found.seal is None:
        return None
    try:
        digest = restored(transform, memoryview(found.seal), found.of_section(""))
    except BlobTransformError as e:
        return f"the seal of its manifest cannot be restored: {e}"
    if hmac.compare_digest(bytes(digest), _sealed_digest(manifest)):
        return None
    return (
        "the seal belongs to another manifest: sections were added, left out or exchanged after the blob was exported"
    )


def _sealed_digest(manifest: BlobManifest) -> bytes:
    return sha256(encode_manifest(_with_seal(manifest, ""))).digest()


def _with_seal(manifest: BlobManifest, seal: str) -> BlobManifest:
    """The manifest with another seal; without one, itself."""
    if not is_sealed(manifest):
        return manifest
    entry = {**manifest.metadata[_KEY], _SEAL: seal}
    return replace(manifest, metadata={**manifest.metadata, _KEY: entry})


def why_not_restored(manifest: BlobManifest, transform: SectionTransform | None) -> str | None:
    """Why `transform` does not restore a blob's sections, as a sentence; None if it does, or if none is needed."""
    found = Transformed.of(manifest)
    if found is None:
        if transform is None:
            return None
        return f"the blob is not stored by {transform.name!r}; omit the key or the transform"
    if transform is None:
        return f"the blob is stored by {found.name!r}; pass the key or the transform with which it was exported"
    if transform.name != found.name:
        return f"the blob is stored by {found.name!r}; the key or the transform that was passed is {transform.name!r}"
    return None


def applied(transform: SectionTransform, data: memoryview, context: bytes) -> Buffer:
    """Call `transform.apply`. Raises `BlobTransformError` from its errors, unless they are `BlobError`s."""
    try:
        return transform.apply(data, context)
    except BlobError:
        raise
    except Exception as e:
        raise BlobTransformError(f"the transform {transform.name!r} failed: {type(e).__name__}: {e}") from e


def restored(transform: SectionTransform, data: memoryview, context: bytes) -> Buffer:
    """Call `transform.restore`. Raises `BlobTransformError` from its errors, or if it returns no bytes."""
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
