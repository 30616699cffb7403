"""Reads a blob: sections' contents are checked on first use, everything else on opening."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from threading import Lock, Thread
from types import TracebackType
from typing import Self

from engine.blob.bound import Bound, BoundSection, WeightsFile, why_not_bound
from engine.blob.container import read_prologue
from engine.blob.keys import TrustedKey
from engine.blob.manifest import BlobManifest, BlobSection
from engine.blob.signature import BlobSignature
from engine.blob.source import BlobInput, FileRegion, StreamSource, aligned_copy, allocate_aligned, open_source
from engine.blob.transform import SectionTransform, Transformed, restored, why_not_authentic, why_not_restored
from engine.errors import BlobCorruptError, BlobError, BlobFormatError, BlobIncompatibleError, BlobTransformError
from engine.files.digest import sha256
from engine.startup import dataclass
from engine.threads import start_thread


class BlobReader:
    """A blob, opened from a path, from bytes, or from a binary stream.

    A path is read into memory, or mapped with `mmap=True`: then pages are loaded on use, and if another process
    truncates the file while it is mapped, this process is killed. With `on_demand=True`, each section of a file is read
    when it is first used, and the file stays open until then, so that a package takes memory for one of its variants
    only. A buffer is used in place. A stream is read from its position to the blob's last byte, and no further; in a
    file or a buffer, no data may follow the blob.

    Sections start at addresses that are multiples of 64 if read from a path (mapped or not) or a
    stream; in a buffer, they do if the buffer's own address is such a multiple. That includes a nested blob:
    `reader.nested("part")` reads in place. Sections that are stored by a `transform` are restored on first use, in new
    memory; those that are in the file `weights` are used in place there if they are aligned.

    All methods may be called from any thread.

    Raises `BlobFormatError` if the bytes are not a blob, are truncated or contradict themselves,
    `BlobIncompatibleError` for another format version, `BlobError` if the file or stream cannot be read. `transform`
    and `weights` are checked against the blob when a section is used, at the latest: see `authenticate`.
    """

    __slots__ = (
        *("_authentication", "_data", "_entries", "_is_admitted", "_is_authentic", "_is_covered", "_is_trusted"),
        *("_manifest", "_signature", "_transform", "_transformed", "_weights", "_where"),
    )

    def __init__(
        self,
        source: BlobInput,
        *,
        mmap: bool = False,
        on_demand: bool = False,
        transform: SectionTransform | None = None,
        weights: WeightsFile | None = None,
    ) -> None:
        with open_source(source, use_mmap=mmap) as opened:
            prologue = read_prologue(opened)
            self._where = opened.where
            self._manifest = prologue.manifest
            self._signature = prologue.signature
            self._is_admitted = self._is_authentic = self._is_covered = self._is_trusted = False
            self._check_zero(opened.read(prologue.padding), "after the manifest")
            if on_demand and isinstance(opened, StreamSource):
                data = opened.region(prologue.data_size)
            else:
                data = opened.read(prologue.data_size)
        self._transform, self._weights = transform, weights
        self._authentication = Lock()
        self._transformed = Transformed.of(prologue.manifest)
        bound = Bound.of(prologue.manifest)
        self._entries = {section.name: _Entry(section) for section in prologue.manifest.sections}
        if bound is not None:
            self._entries |= {section.name: _Entry(section) for section in bound.sections}
        self._data: memoryview | FileRegion | None = data
        end = 0
        for section in prologue.manifest.sections:
            self._check_zero(data[end : section.offset], f"before section {reprlib.repr(section.name)}")
            end = section.offset + section.size

    @property
    def manifest(self) -> BlobManifest:
        """The blob's description of itself; also available after `close`."""
        return self._manifest

    @property
    def where(self) -> str:
        """The blob as messages name it: by its path, or by the type of its stream."""
        return self._where

    @property
    def signature(self) -> BlobSignature | None:
        """The signature that the blob states; see `is_trusted`."""
        return self._signature

    @property
    def is_trusted(self) -> bool:
        """Whether a trusted key has signed this blob, or the one that contains it: its code may be run."""
        return self._is_trusted

    @property
    def is_covered(self) -> bool:
        """Whether the core has admitted the blob that contains this one."""
        return self._is_covered

    def admit(self) -> None:
        """Called by the core: the blob may be imported, and so may those that it contains."""
        self._is_admitted = True

    def verify_signature(self, keys: Mapping[str, TrustedKey]) -> None:
        """Verify the signature if `keys` has the key of its id; the blob is trusted from then on.

        Raises `BlobSignatureError` if the signature is wrong.
        """
        self._is_trusted = False
        key = keys.get(self._signature.key_id) if self._signature is not None else None
        if self._signature is not None and key is not None:
            self._signature.verify(key, self._where)
            self._is_trusted = True

    def authenticate(self) -> None:
        """Require that the blob was exported with the transform that was passed, and with none if none was.

        With a cipher, this proves that the author wrote the manifest and the content of all sections, including those
        in another file; no section is used before. Raises `BlobTransformError`, and `BlobCorruptError` for damage.
        """
        with self._authentication:
            if self._is_authentic or self._data is None:
                return
            if (why := why_not_restored(self._manifest, self._transform)) is not None:
                raise BlobTransformError(f"{self._where}: {why}")
            if self._transformed is not None and self._transform is not None:
                if self._transformed.seal is None:
                    self._restore_one()
                elif (why := why_not_authentic(self._manifest, self._transform)) is not None:
                    raise BlobTransformError(f"{self._where}: {why}")
            self._is_authentic = True

    def nested(self, name: str, *, weights: WeightsFile | None = None) -> BlobReader:
        """The blob in section `name`, read in place; decisions on this one also apply to it.

        `weights` has its sections that are elsewhere. Raises the errors of `section` and of `BlobReader`.
        """
        reader = BlobReader(self.section(name), weights=weights)
        reader._is_covered = reader._is_admitted = self._is_admitted
        reader._is_trusted = self._is_trusted
        return reader

    @property
    def section_names(self) -> tuple[str, ...]:
        """The names of the sections, in the order in which they were written."""
        return tuple(self._entries)

    def section(self, name: str) -> memoryview:
        """The content of section `name` as a read-only view of bytes, without a copy.

        The section's hash is verified on first use, by one thread while others that request the same
        section wait. The view stays valid after `close`.

        Raises `BlobFormatError` if the section does not exist, `BlobCorruptError` if the content does not match its
        hash, `BlobTransformError` if it cannot be restored, `BlobIncompatibleError` if it is in another file, which was
        not passed, `BlobError` after `close`.
        """
        entry = self._entries.get(name)
        if entry is None:
            available = ", ".join(map(repr, self.section_names[:20])) or "none"
            raise BlobFormatError(f"{self._where}: no section {name!r}; it has {available}")
        self.authenticate()
        return self._content_of(entry)

    def verify_ahead(self) -> None:
        """Start verifying the sections in another thread, from the last to the first, while the caller uses the first.

        Hashing takes most of the time of importing a network. Errors are raised when the section is used.
        """
        start_thread(Thread(target=self._verify_backwards, name="engine-blob", daemon=True))

    def verify(self) -> None:
        """Verify the hash of every section that has not been used yet; raises `BlobCorruptError`."""
        for name in self._entries:
            self.verify_section(name)

    def verify_section(self, name: str) -> None:
        """Verify the hash of a section, which needs no key. Raises the errors of `section` but `BlobTransformError`."""
        entry, data = self._entries.get(name), self._data
        if entry is None or data is None or entry.content is not None:
            self.section(name)
        elif isinstance(entry.section, BoundSection):
            self._bound(entry.section)
        else:
            self._verify(entry.section, data[entry.section.offset : entry.section.offset + entry.section.size])

    def close(self) -> None:
        """Release the data; memory, or the mapping, is freed together with the last view of a section."""
        self._data = None
        for entry in self._entries.values():
            entry.content = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _verify_backwards(self) -> None:
        with suppress(BlobError):
            for name in reversed(self._entries):
                self.section(name)

    def _restore_one(self) -> None:
        """Restore the smallest section of a blob without a seal: only the key's owner can have made its manifest."""
        own = [entry for entry in self._entries.values() if isinstance(entry.section, BlobSection)]
        if not own:
            raise BlobTransformError(
                f"{self._where}: it has neither a seal nor a section that is stored by "
                f"{self._transformed and self._transformed.name!r}, so anyone could have made it; export the "
                "network again"
            )
        self._content_of(min(own, key=lambda entry: entry.section.size))

    def _content_of(self, entry: _Entry) -> memoryview:
        if self._data is None:
            raise BlobError(f"{self._where}: section {entry.section.name!r} requested after close")
        with entry.lock:
            if entry.content is None:
                entry.content = self._content(entry.section, self._data)
            return entry.content

    def _check_zero(self, padding: memoryview, place: str) -> None:
        if any(padding):
            raise BlobFormatError(
                f"{self._where}: the padding {place} is not zero; the blob was damaged: export it again"
            )

    def _content(self, section: BlobSection | BoundSection, data: memoryview | FileRegion) -> memoryview:
        if isinstance(section, BoundSection):
            return self._bound(section)
        view = data[section.offset : section.offset + section.size]
        self._verify(section, view)
        if self._transformed is None or self._transform is None:
            return view
        try:
            content = restored(self._transform, view, self._transformed.of_section(section.name))
        except BlobTransformError as e:
            raise BlobTransformError(f"{self._where}: section {section.name!r} cannot be restored: {e}") from e
        return aligned_copy(content, self._where)

    def _bound(self, section: BoundSection) -> memoryview:
        """The content of a section in another file."""
        if self._weights is None:
            raise BlobIncompatibleError(f"{self._where}: {why_not_bound(self._manifest, None)}")
        view = self._weights.read(section.place, section.size)
        if not self._weights.is_used_in_place:
            copy = allocate_aligned(len(view), self._where)
            copy[:] = view
            view = copy
        if not self._weights.is_verified and sha256(view).hexdigest() != section.sha256:
            raise BlobCorruptError(
                f"{self._where}: section {section.name!r} is in {self._weights.path}, whose content has changed "
                "since the blob was exported; pass the unchanged file, or export the blob again"
            )
        return aligned_copy(view, self._where)

    def _verify(self, section: BlobSection, view: memoryview) -> None:
        digest = sha256(view).hexdigest()
        if digest != section.sha256:
            raise BlobCorruptError(
                f"{self._where}: section {section.name!r} ({section.size} bytes) has SHA-256 {digest}, the "
                f"manifest says {section.sha256}; the blob was damaged: export it again"
            )


@dataclass(slots=True)
class _Entry:
    """A section, and its content once it is verified and restored."""

    section: BlobSection | BoundSection
    lock: Lock = field(default_factory=Lock)
    content: memoryview | None = None
