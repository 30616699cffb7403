"""Writes a blob to a stream, or atomically to a file."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import numpy as np

from engine.blob.bound import MIN_BYTES, Bound, BoundSection, WeightsFile, hash_of
from engine.blob.container import MAX_MANIFEST_SIZE, aligned, pack_prologue
from engine.blob.keys import SigningKey
from engine.blob.manifest import BlobManifest, BlobSection, checked_text, encode_manifest
from engine.blob.source import Buffer
from engine.blob.transform import SectionTransform, Transformed, applied, is_sealed, sealed
from engine.errors import BlobError, BlobSignatureError, EngineError
from engine.files import private_opener, why_not_opened

_CHUNK = 16 * 2**20


class WritableStream(Protocol):
    """A blocking binary stream; it is flushed if it has `flush`."""

    def write(self, data: memoryview, /) -> int | None:
        """Write bytes from the front of `data`, and return how many."""


class BlobWriter:
    """Collects sections, then writes header, manifest and sections in one go.

    Buffers are kept by reference and never copied: do not change them until the blob is written.
    Hashes are computed when writing; one writer may write any number of times. Not thread-safe.
    """

    __slots__ = ("_manifest", "_sections", "_transform")

    def __init__(self, manifest: BlobManifest) -> None:
        if not isinstance(manifest, BlobManifest):
            raise BlobError(f"BlobWriter: expected a BlobManifest, got {type(manifest).__name__}")
        self._manifest = manifest
        self._sections: dict[str, list[memoryview]] = {}
        self._transform: SectionTransform | None = None

    @property
    def manifest(self) -> BlobManifest:
        """The manifest as it was given, without sections."""
        return self._manifest

    def add_section(self, name: str, data: Buffer | Iterable[Buffer]) -> None:
        """Add a section that consists of the bytes of `data`, or of its buffers one after the other.

        Raises `BlobError` if the name is empty, repeated or cannot be encoded, and for memory that is not
        C-contiguous.
        """
        if not isinstance(name, str) or not name:
            raise BlobError(f"add_section: expected a non-empty name, got {name!r}")
        where = f"section {name!r}"
        name = checked_text(name, where)
        if name in self._sections:
            raise BlobError(f"{where}: already added; section names are unique in a blob")
        self._sections[name] = _buffers(data, where)

    def section(self, name: str) -> Sequence[memoryview]:
        """The buffers of a section that was added."""
        return self._sections[name]

    @property
    def section_names(self) -> tuple[str, ...]:
        """The names of the sections in the order in which they were added."""
        return tuple(self._sections)

    @property
    def byte_size(self) -> int:
        """The bytes of all sections together."""
        return sum(len(buffer) for buffers in self._sections.values() for buffer in buffers)

    def bound_to(self, weights: WeightsFile, *, is_required: bool = True) -> BlobWriter:
        """A writer of the same blob without the sections that `weights` has; an import needs that file.

        If it does not have any of them, it is the same writer, or raises `BlobError` if `is_required`.
        """
        sections, kept = [], BlobWriter(self._manifest)
        for name, buffers in self._sections.items():
            size = sum(map(len, buffers))
            found = weights.place_of(buffers) if size >= MIN_BYTES else None
            if found is None:
                kept._sections[name] = buffers
            else:
                sections.append(BoundSection(name, size, *found))
        if not sections and not is_required:
            return self
        if not sections:
            raise BlobError(
                f"{weights.path} does not contain any of the blob's {len(self._sections)} sections, so leaving out the "
                "weights would save nothing: the device stores weights in another form, or this is another model's file"
            )
        bound = Bound(os.path.basename(weights.path), tuple(sections))
        kept._manifest = replace(self._manifest, metadata={**self._manifest.metadata, **bound.to_metadata()})
        return kept

    def transformed(self, transform: SectionTransform) -> BlobWriter:
        """A writer of the same blob whose sections are stored by `transform`. It holds the stored form of all of them.

        Writing it also seals the manifest by `transform`. Raises `BlobTransformError`.
        """
        stored = BlobWriter(Transformed.record(self._manifest, transform))
        stored._transform = transform
        found = Transformed.of(stored._manifest)
        assert found is not None
        for name, buffers in self._sections.items():
            data = buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))
            stored.add_section(name, applied(transform, data, found.of_section(name)))
        return stored

    def write(self, stream: WritableStream, *, sign: SigningKey | None = None) -> int:
        """Write the blob at the position of `stream`, flush it, and return the number of bytes.

        With `sign`, the blob is signed by this key.

        After a short write the rest is written. For an object that is not from `io`, None from `write`
        means that all bytes were written.

        Raises `BlobError`, with the stream's own error as cause, if the stream fails; it then
        contains an incomplete blob, which no reader accepts.
        """
        manifest, encoded = self._encode()
        last = manifest.sections[-1] if manifest.sections else None
        data_size = last.offset + last.size if last else 0
        prologue = pack_prologue(
            encoded, data_size, sign, is_sealed=is_sealed(manifest), generation=manifest.generation
        )
        total = len(prologue) + data_size
        written = 0
        for chunk in self._chunks(prologue):
            written += _write_all(stream, chunk, written, total)
        _flush(stream, total)
        return written

    def write_file(
        self,
        path: str | os.PathLike[str],
        *,
        sign: SigningKey | None = None,
        is_private: bool = False,
        is_synced: bool = True,
    ) -> int:
        """Write the blob to the file `path` and return the number of bytes.

        The blob is written to a temporary file in the same folder, which is renamed when it is complete and on
        disk, and removed on any failure, which leaves an existing file unchanged. If `path` is a symbolic link,
        its target is replaced. With `sign`, the blob is signed by this key. A private file can be read by its owner
        only. Without `is_synced`, the file may be incomplete after a loss of power.

        Raises `BlobError`, with the system's error as cause.
        """
        target = _target(path)
        temporary = os.path.join(os.path.dirname(target), f".{os.urandom(16).hex()}.tmp")
        try:
            with open(temporary, "xb", buffering=0, opener=private_opener if is_private else None) as file:
                written = self.write(file, sign=sign)
                if is_synced:
                    os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException as e:
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(e, BlobSignatureError):
                raise
            if isinstance(e, BlobError):
                raise BlobError(f"cannot write blob {target}: {e}") from (e.__cause__ or e)
            if isinstance(e, Exception):
                raise BlobError(f"cannot write blob {target}: {why_not_opened(target, e)}") from e
            raise
        if is_synced:
            _sync_folder(os.path.dirname(target))
        return written

    def _encode(self) -> tuple[BlobManifest, bytes]:
        sections = []
        end = 0
        for name, buffers in self._sections.items():
            section = BlobSection(name, aligned(end), sum(map(len, buffers)), hash_of(buffers))
            end = section.offset + section.size
            sections.append(section)
        manifest = replace(self._manifest, sections=tuple(sections))
        if self._transform is not None:
            manifest = sealed(manifest, self._transform)
        encoded = encode_manifest(manifest)
        if len(encoded) > MAX_MANIFEST_SIZE:
            raise BlobError(
                f"the manifest takes {len(encoded)} bytes, at most {MAX_MANIFEST_SIZE} are allowed; "
                "store large metadata in a section"
            )
        return manifest, encoded

    def _chunks(self, prologue: bytes) -> Iterator[memoryview]:
        yield memoryview(prologue)
        end = 0
        for buffers in self._sections.values():
            yield memoryview(bytes(aligned(end) - end))
            end = aligned(end) + sum(map(len, buffers))
            for buffer in buffers:
                # Bounded pieces, because some streams copy their arguments.
                for start in range(0, len(buffer), _CHUNK):
                    yield buffer[start : start + _CHUNK]


def _buffers(data: Buffer | Iterable[Buffer], where: str) -> list[memoryview]:
    if _is_buffer(data):
        return [_flat(data, where)]
    if isinstance(data, str) or not isinstance(data, Iterable):
        raise BlobError(f"{where}: expected bytes, an array, or buffers; got {type(data).__name__}")
    try:
        return [_flat(buffer, f"{where}, buffer {i}") for i, buffer in enumerate(data)]
    except EngineError:
        raise
    except Exception as e:
        raise BlobError(f"{where}: iterating over its buffers failed: {e}") from e


def _is_buffer(data: object) -> bool:
    if isinstance(data, np.ndarray):
        return True
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _flat(data: object, where: str) -> memoryview:
    """One-dimensional bytes of `data`, in place."""
    try:
        if isinstance(data, np.ndarray):
            if not data.flags.c_contiguous:
                raise BlobError(f"{where}: the array is not C-contiguous; pass numpy.ascontiguousarray of it")
            # As uint8, because the buffer protocol has no format for bfloat16 and other types of ml_dtypes.
            return np.asarray(data).reshape(-1).view(np.uint8).data
        view = memoryview(data)  # type: ignore[arg-type]
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as e:
        raise BlobError(f"{where}: expected C-contiguous bytes or numbers, got {type(data).__name__}: {e}") from e


def _write_all(stream: WritableStream, chunk: memoryview, before: int, total: int) -> int:
    done = 0
    while done < len(chunk):
        at = f"the stream failed after {before + done} of {total} bytes"
        try:
            count: object = stream.write(chunk[done:])
        except Exception as e:
            raise BlobError(f"{at}: {e}") from e
        if count is None and not isinstance(stream, io.IOBase):
            count = len(chunk) - done
        if type(count) is not int or not 0 < count <= len(chunk) - done:
            raise BlobError(
                f"{at}: write() returned {count!r} for {len(chunk) - done} bytes; expected a blocking stream"
            )
        done += count
    return done


def _flush(stream: WritableStream, total: int) -> None:
    flush = getattr(stream, "flush", None)
    if flush is None:
        return
    try:
        flush()
    except Exception as e:
        raise BlobError(f"the stream failed when flushing {total} bytes: {e}") from e


def _target(path: str | os.PathLike[str]) -> str:
    """The file that `path` refers to after following symbolic links, whether it exists or not."""
    try:
        name = os.fsdecode(path)
        target = os.path.realpath(name)
        if not os.path.basename(name):
            raise BlobError(f"cannot write blob {name!r}: it names a folder; add a file name")
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        return target
    except (OSError, ValueError, TypeError) as e:
        raise BlobError(f"cannot write blob {path!r}: {e}") from e
    # Renaming over /dev/null would replace the device for all processes.
    if not stat.S_ISREG(mode):
        raise BlobError(f"cannot write blob {target}: not a regular file; open it and pass the stream")
    return target


def _sync_folder(folder: str) -> None:
    """Make the new name durable; the file is complete even if this fails."""
    with suppress(OSError):  # some systems cannot open or sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
