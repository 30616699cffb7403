"""The container of compiled networks: header, manifest, and sections, whose contents are not interpreted here.

A blob is, all integers little-endian:

======================  ==================================================================================
bytes                   content
======================  ==================================================================================
0..7                    magic, ``93 45 42 4C 4F 42 0D 0A``
8..15                   format version
16..23                  manifest length in bytes
24..31                  length of the whole blob in bytes
32..63                  SHA-256 of the manifest
64..95                  SHA-256 of bytes 0..63; the header's layout is the same in every format version
96..                    manifest: canonical JSON (UTF-8, sorted keys, no spaces), see `BlobManifest`
..                      zeros up to the next multiple of 64: the start of the data area
data area               sections in the manifest's order, each at the first multiple of 64 after the one
                        before, zeros between them; the blob ends where the last section ends
======================  ==================================================================================

The format version is 4 (G - 1) + 1, plus 1 for a signed blob, plus 2 for a sealed one, where G is the generation of the
format: 5 to 8 in this engine, which also reads 1 to 4. The manifests of the second generation have `preferences`, and
windows of versions as requirements. The signature follows the manifest, before the zeros; see `engine.blob.signature`.
Sealed blobs have sections in another form, and a sealed manifest; see `engine.blob.transform`. Encrypted blobs of the
versions 1 and 2 were written before there were seals.

A section's offset counts from the start of the data area, so that it does not depend on the manifest's
length. Sections may be stored in another form, such as encrypted (`engine.blob.transform`), or be in another file
(`engine.blob.bound`). The encoding of given contents is unique: any deviation (a gap, an overlap, nonzero padding,
a manifest that is not canonical, bytes after the end) is an error. A section may contain a blob.

Every failure is a `BlobError`: `BlobFormatError` if the bytes contradict themselves, `BlobCorruptError`
if a section does not match its hash, `BlobIncompatibleError` for another format version, `BlobSignatureError` for a
wrong signature, `BlobTransformError` for a wrong key of encryption, and `BlobError` itself if a file or stream fails
(its error is the cause). The hashes detect damage; only a signature proves the origin of a blob.
"""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.blob.bound import BlobWeights, WeightsFile
    from engine.blob.check import BlobAnswer, BlobCheck, check_blob, check_manifest
    from engine.blob.container import (
        FORMAT_VERSION,
        OLDEST_FORMAT_VERSION,
        SEALED_FORMAT_VERSION,
        SEALED_SIGNED_FORMAT_VERSION,
        SIGNED_FORMAT_VERSION,
        is_blob,
    )
    from engine.blob.encryption import AesGcmKey
    from engine.blob.key_files import (
        make_key_files,
        read_encryption_key,
        read_signing_key,
        read_trusted_keys,
        transform_of,
    )
    from engine.blob.keys import Ed25519PrivateKey, Ed25519PublicKey, HmacKey, SigningKey, TrustedKey
    from engine.blob.manifest import BlobManifest, BlobSection
    from engine.blob.parts import BlobPart
    from engine.blob.reader import BlobReader
    from engine.blob.release import BlobRelease
    from engine.blob.signature import BlobSignature
    from engine.blob.source import ALIGNMENT, BlobInput, Buffer, ReadableStream
    from engine.blob.transform import SectionTransform
    from engine.blob.writer import BlobWriter, WritableStream
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.blob.bound": ["BlobWeights", "WeightsFile"],
        "engine.blob.check": ["BlobAnswer", "BlobCheck", "check_blob", "check_manifest"],
        "engine.blob.container": [
            "FORMAT_VERSION", "OLDEST_FORMAT_VERSION", "SEALED_FORMAT_VERSION", "SEALED_SIGNED_FORMAT_VERSION",
            "SIGNED_FORMAT_VERSION", "is_blob",
        ],
        "engine.blob.encryption": ["AesGcmKey"],
        "engine.blob.key_files": [
            "make_key_files", "read_encryption_key", "read_signing_key", "read_trusted_keys", "transform_of",
        ],
        "engine.blob.keys": ["Ed25519PrivateKey", "Ed25519PublicKey", "HmacKey", "SigningKey", "TrustedKey"],
        "engine.blob.manifest": ["BlobManifest", "BlobSection"],
        "engine.blob.parts": ["BlobPart"],
        "engine.blob.reader": ["BlobReader"],
        "engine.blob.release": ["BlobRelease"],
        "engine.blob.signature": ["BlobSignature"],
        "engine.blob.source": ["ALIGNMENT", "BlobInput", "Buffer", "ReadableStream"],
        "engine.blob.transform": ["SectionTransform"],
        "engine.blob.writer": ["BlobWriter", "WritableStream"],
    })  # fmt: skip

__all__ = [
    "ALIGNMENT",
    "FORMAT_VERSION",
    "OLDEST_FORMAT_VERSION",
    "SEALED_FORMAT_VERSION",
    "SEALED_SIGNED_FORMAT_VERSION",
    "SIGNED_FORMAT_VERSION",
    "AesGcmKey",
    "BlobAnswer",
    "BlobCheck",
    "BlobInput",
    "BlobManifest",
    "BlobPart",
    "BlobReader",
    "BlobRelease",
    "BlobSection",
    "BlobSignature",
    "BlobWeights",
    "BlobWriter",
    "Buffer",
    "Ed25519PrivateKey",
    "Ed25519PublicKey",
    "HmacKey",
    "ReadableStream",
    "SectionTransform",
    "SigningKey",
    "TrustedKey",
    "WeightsFile",
    "WritableStream",
    "check_blob",
    "check_manifest",
    "is_blob",
    "make_key_files",
    "read_encryption_key",
    "read_signing_key",
    "read_trusted_keys",
    "transform_of",
]
