"""The blobs in a blob, which are the parts of a device that runs on others: their manifests, from front to back.

Sections are skipped, not read, except sections stored in another form, whose content shows only when it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.blob.bound import Bound, WeightsFile
from engine.blob.container import Prologue, is_blob, read_prologue
from engine.blob.manifest import BlobManifest, BlobSection
from engine.blob.source import Source, ViewSource, aligned_copy
from engine.blob.transform import SectionTransform, Transformed, restored, why_not_authentic, why_not_restored
from engine.errors import BlobError, BlobFormatError
from engine.startup import dataclass

_START: Final = 8
"""The number of bytes of a section that show whether it is a blob."""
_MAX_DEPTH: Final = 16
"""The most levels of blobs in blobs. Devices nest two or three; a forger could nest as many as a file has room for."""


@dataclass(frozen=True, slots=True)
class BlobPart:
    """A blob in a blob.

    Attributes:
        name: its section; of a part of a part, both sections: "network/part1".
        manifest: its description of itself; None if it cannot be read.
        reason: why it cannot be read; empty if it can.
    """

    name: str
    manifest: BlobManifest | None
    reason: str = ""


def read_parts(
    source: Source, prologue: Prologue, transform: SectionTransform | None, weights: WeightsFile | None
) -> tuple[BlobPart, ...]:
    """The parts of a blob whose prologue was read from `source`, which is read on.

    Those in sections that cannot be restored, or are in a file that was not passed, are left out. Raises `BlobError` if
    the source fails or ends.
    """
    return tuple(_parts(source, prologue, transform, weights))


def _parts(
    source: Source,
    prologue: Prologue,
    transform: SectionTransform | None,
    weights: WeightsFile | None,
    within: str = "",
    depth: int = 1,
) -> Iterator[BlobPart]:
    manifest = prologue.manifest
    stored, is_readable = Transformed.of(manifest), why_not_restored(manifest, transform) is None
    if stored is not None and is_readable:
        assert transform is not None
        is_readable = why_not_authentic(manifest, transform) is None
    source.skip(prologue.padding)
    end = 0
    for section in manifest.sections:
        source.skip(section.offset - end)
        end = section.offset + section.size
        if stored is None:
            yield from _part(_SectionSource(source, section), within + section.name, depth)
        elif is_readable and transform is not None:
            yield from _restored_part(source.read(section.size), section, stored, transform, within)
        else:
            source.skip(section.size)
    bound = Bound.of(manifest)
    if bound is not None and weights is not None and is_readable:
        for each in bound.sections:
            try:
                view = weights.read(each.place, each.size)
            except BlobError as e:
                yield BlobPart(within + each.name, None, str(e))
            else:
                yield from _part(ViewSource(view, "blob"), within + each.name)


def _restored_part(
    data: memoryview, section: BlobSection, stored: Transformed, transform: SectionTransform, within: str
) -> Iterator[BlobPart]:
    name = within + section.name
    try:
        content = aligned_copy(restored(transform, data, stored.of_section(section.name)), "blob")
    except BlobError as e:
        yield BlobPart(name, None, str(e))
    else:
        yield from _part(ViewSource(content, "blob"), name)


def _part(section: Source, name: str, depth: int = 1) -> Iterator[BlobPart]:
    """The blob that a section is, and its parts; nothing if it is another section, which is skipped."""
    assert section.size is not None
    size, start = section.size, bytes(section.read(min(_START, section.size)))
    if is_blob(start):
        opened = _SectionSource(section, BlobSection(name, 0, size, ""), start)
        try:
            prologue = read_prologue(opened)
            if depth > _MAX_DEPTH:
                raise BlobFormatError(f"blobs are nested deeper than {_MAX_DEPTH} levels")
        except BlobError as e:
            yield BlobPart(name, None, str(e))
        else:
            yield BlobPart(name, prologue.manifest)
            yield from _parts(opened, prologue, None, None, f"{name}/", depth + 1)
        opened.skip(opened.left)
    else:
        section.skip(size - len(start))


class _SectionSource:
    """One section of a source that is read from front to back.

    Args:
        source: at the section's first byte, after `start`.
        start: the bytes that were already read from it.
    """

    is_exact = True
    why_empty = "empty"

    def __init__(self, source: Source, section: BlobSection, start: bytes = b"") -> None:
        self.where = "blob"
        self.size: int | None = section.size
        self.left = section.size
        self._source, self._start = source, start

    def read(self, count: int) -> memoryview:
        """The next bytes."""
        if count > self.left:
            raise BlobFormatError(f"{self.where}: truncated; {count} bytes exceed the {self.left} that are left")
        self.left -= count
        ahead, self._start = self._start[:count], self._start[count:]
        if not ahead:
            return self._source.read(count)
        rest = self._source.read(count - len(ahead)) if count > len(ahead) else b""
        return memoryview(ahead + bytes(rest))

    def skip(self, count: int) -> None:
        """Pass over the next bytes."""
        if count > self.left:
            raise BlobFormatError(f"{self.where}: truncated; {count} bytes exceed the {self.left} that are left")
        self.left -= count
        ahead = min(count, len(self._start))
        self._start = self._start[ahead:]
        self._source.skip(count - ahead)

    def rewind(self) -> None:
        """Nothing to do: the blob that has the section is put back."""
