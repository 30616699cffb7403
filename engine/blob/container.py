"""The header and the layout of a blob, shared by writer and reader."""

from __future__ import annotations

import os
import reprlib
import struct
from collections.abc import Iterable

from engine.blob.keys import SigningKey
from engine.blob.manifest import GENERATION, BlobManifest, BlobSection, decode_manifest
from engine.blob.signature import BlobSignature, pack_signature, read_signature, signature_size
from engine.blob.source import ALIGNMENT, Source
from engine.blob.transform import is_sealed, is_transformed
from engine.errors import BlobFormatError, BlobIncompatibleError
from engine.files.digest import sha256
from engine.startup import dataclass

FORMAT_VERSION = 5
"""The format version of blobs without a signature."""

SIGNED_FORMAT_VERSION = 6
"""The format version of signed blobs: the signature follows the manifest."""

SEALED_FORMAT_VERSION = 7
"""The format version of blobs whose sections are stored by a transform, which also seals the manifest."""

SEALED_SIGNED_FORMAT_VERSION = 8
"""The format version of signed blobs with a seal."""

OLDEST_FORMAT_VERSION = 1
"""The oldest format version that this engine reads: 1 to 4 are the same four kinds of the first generation."""

MAX_MANIFEST_SIZE = 16 * 2**20
"""In bytes of JSON; larger data belongs in a section."""

_VERSIONS = {
    4 * (generation - 1) + 1 + is_signed + 2 * is_sealed: (generation, is_sealed, is_signed)
    for generation in (1, GENERATION)
    for is_sealed in (False, True)
    for is_signed in (False, True)
}
"""By version: the generation of the format, whether the blobs are sealed, and whether they are signed. A generation has
another manifest; the engine reads its own and the one before."""
_MAGIC = b"\x93EBLOB\r\n"
_HEADER = struct.Struct("<8sQQQ32s")
HEADER_SIZE = _HEADER.size + 32
_AGAIN = "the blob was damaged after it was written; export it again"


def is_blob(path: str | os.PathLike[str] | bytes) -> bool:
    """Whether a regular file, or bytes, begin like a blob; False for a file that cannot be read."""
    if isinstance(path, bytes):
        return path.startswith(_MAGIC)
    if not os.path.isfile(path):  # reading from a pipe would consume bytes
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Prologue:
    """The contents before the data area. `padding` and `data_size` are in bytes."""

    manifest: BlobManifest
    signature: BlobSignature | None
    padding: int
    data_size: int


def read_prologue(source: Source) -> Prologue:
    """Read only header and manifest, and check them against each other and the source's size.

    Raises `BlobFormatError`; `BlobIncompatibleError` for another format version; `BlobError` if the
    source fails.
    """
    header = _read_header(source)
    _, version, manifest_size, blob_size, digest = _HEADER.unpack(header)
    data_start = aligned(HEADER_SIZE + manifest_size)
    if manifest_size > MAX_MANIFEST_SIZE or data_start > blob_size:
        raise BlobFormatError(
            f"{source.where}: the header declares a manifest of {manifest_size} bytes in a blob of {blob_size}; "
            f"expected at most {MAX_MANIFEST_SIZE}, and inside the blob"
        )
    _check_size(source, blob_size)
    manifest_bytes = bytes(source.read(manifest_size))
    if sha256(manifest_bytes).digest() != digest:
        raise BlobFormatError(f"{source.where}: the manifest does not match its hash in the header; {_AGAIN}")
    signature, size = None, HEADER_SIZE + manifest_size
    generation, has_seal, is_signed = _VERSIONS[version]
    if is_signed:
        signature, added = read_signature(source, header)
        size += added
        data_start = aligned(size)
    try:
        manifest = decode_manifest(manifest_bytes, generation)
        data_size = _laid_out(manifest.sections)
    except BlobFormatError as e:
        raise BlobFormatError(f"{source.where}: {e}") from e
    if is_sealed(manifest) is not has_seal:
        raise BlobFormatError(
            f"{source.where}: format version {version} is for blobs {'with' if has_seal else 'without'} a seal, "
            f"but the manifest has {'none' if has_seal else 'one'}; {_AGAIN}"
        )
    if generation > 1 and is_transformed(manifest) and not has_seal:
        raise BlobFormatError(
            f"{source.where}: the sections are stored in another form, and the manifest has no seal, which proves that "
            f"their list is complete; {_AGAIN}"
        )
    if data_start + data_size != blob_size:
        raise BlobFormatError(
            f"{source.where}: the header declares {blob_size} bytes, but header, manifest and sections "
            f"take {data_start + data_size}"
        )
    return Prologue(manifest, signature, data_start - size, data_size)


def pack_prologue(
    manifest_bytes: bytes, data_size: int, key: SigningKey | None, *, is_sealed: bool, generation: int
) -> bytes:
    """All bytes before the data area, which has `data_size` bytes; signed by `key`, if there is one."""
    size = HEADER_SIZE + len(manifest_bytes) + (0 if key is None else signature_size(key))
    version = next(number for number, kind in _VERSIONS.items() if kind == (generation, is_sealed, key is not None))
    digest = sha256(manifest_bytes).digest()
    fields = _HEADER.pack(_MAGIC, version, len(manifest_bytes), aligned(size) + data_size, digest)
    prologue = fields + sha256(fields).digest() + manifest_bytes
    if key is not None:
        prologue += pack_signature(key, fields)
    return prologue.ljust(aligned(size), b"\0")


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _read_header(source: Source) -> bytes:
    """The header without its own hash."""
    if source.size == 0:
        raise BlobFormatError(f"{source.where}: {source.why_empty}; expected a blob")
    # The magic first: a short file of another format should not be reported as a truncated blob.
    wanted = len(_MAGIC) if source.size is None else min(len(_MAGIC), source.size)
    magic = bytes(source.read(wanted))
    if not _MAGIC.startswith(magic):
        # A ModelProto begins with its first field, the IR version.
        hint = "; if it is an ONNX model, compile it: Core.compile_model" if magic[:1] == b"\x08" else ""
        raise BlobFormatError(f"{source.where}: not a blob; it starts with {magic!r}, expected {_MAGIC!r}{hint}")
    if source.size is not None and source.size < HEADER_SIZE:
        raise BlobFormatError(
            f"{source.where}: truncated; it has {source.size} bytes, the header alone takes {HEADER_SIZE}"
        )
    rest = bytes(source.read(HEADER_SIZE - len(magic)))
    head, check = (magic + rest)[: _HEADER.size], rest[-32:]
    if sha256(head).digest() != check:
        raise BlobFormatError(f"{source.where}: the header does not match its own hash; {_AGAIN}")
    version = _HEADER.unpack(head)[1]
    if version not in _VERSIONS:
        whose = "of a newer engine" if version > max(_VERSIONS) else "which no engine has written"
        raise BlobIncompatibleError(
            f"{source.where}: format version {version}, {whose}; this engine reads {min(_VERSIONS)} to "
            f"{max(_VERSIONS)}: export the network again with this engine, or read the blob with the engine that wrote "
            "it"
        )
    return head


def _check_size(source: Source, blob_size: int) -> None:
    if source.size is None or blob_size == source.size:
        return
    if blob_size > source.size:
        raise BlobFormatError(f"{source.where}: truncated; it has {source.size} bytes, the header declares {blob_size}")
    if source.is_exact:
        raise BlobFormatError(
            f"{source.where}: {source.size - blob_size} bytes follow the blob's end at {blob_size}; to read "
            "a blob that other data follows, pass a stream"
        )


def _laid_out(sections: Iterable[BlobSection]) -> int:
    """The data area's size in bytes. Raises `BlobFormatError` if a section is not where the writer would put it."""
    end = 0
    for section in sections:
        if section.offset != aligned(end):
            raise BlobFormatError(
                f"section {reprlib.repr(section.name)}: offset {section.offset}, expected {aligned(end)}: the "
                f"first multiple of {ALIGNMENT} after the section before it"
            )
        end = section.offset + section.size
    return end
