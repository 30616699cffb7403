"""The signature of a blob, as it is stored between manifest and sections.

==============  ===========================================================================
bytes           content
==============  ===========================================================================
1               algorithm: 1 for hmac-sha256, 2 for ed25519
1               length of the key's id
2               length of the signature, little-endian
..              the key's id, in ASCII
..              the signature
32              SHA-256 of all of the above, which detects damage
==============  ===========================================================================

Signed are the bytes up to the key's id and bytes 0..63 of the blob's header: format version, lengths, and the hash of
the manifest, which has the hash of every section. So every byte of a blob is covered, including nested blobs.
"""

from __future__ import annotations

import struct
from dataclasses import field
from typing import Final

from engine.blob.keys import Ed25519PublicKey, HmacKey, SigningKey, TrustedKey, checked_key_id
from engine.blob.source import Source
from engine.errors import BlobFormatError, BlobSignatureError
from engine.files.digest import sha256
from engine.startup import dataclass

_CONTEXT: Final = b"engine blob signature\n"
"""It keeps a signature of something else, made with the same key, from being valid for a blob."""
_HEAD: Final = struct.Struct("<BBH")
_NUMBERS: Final = {HmacKey.algorithm: 1, Ed25519PublicKey.algorithm: 2}
_SIZES: Final = {1: HmacKey.signature_size, 2: Ed25519PublicKey.signature_size}
_DIGEST_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class BlobSignature:
    """A blob's signature, as the blob states it; `verify` checks it.

    `message` are the bytes that it signs.
    """

    algorithm: str
    key_id: str
    value: bytes = field(repr=False)
    message: bytes = field(repr=False)

    def verify(self, key: TrustedKey, where: str) -> None:
        """Raise `BlobSignatureError` unless `key`, which has this id, made the signature."""
        if key.algorithm != self.algorithm:  # a public key must never be taken for the secret of HMAC
            raise BlobSignatureError(
                f"{where}: signed by {self.algorithm}, but the trusted key {self.key_id!r} is one of {key.algorithm}; "
                "the blob is forged, or the wrong key is trusted"
            )
        if not key.verify(self.message, self.value):
            raise BlobSignatureError(
                f"{where}: the signature was not made with key {self.key_id!r}: the blob was changed after it was "
                "signed, "
                "or signed by another key of this id; get it again from its author"
            )


def signature_size(key: SigningKey) -> int:
    """The stored size of a signature by `key`, in bytes."""
    return _HEAD.size + len(checked_key_id(key.key_id)) + key.signature_size + _DIGEST_SIZE


def pack_signature(key: SigningKey, header: bytes) -> bytes:
    """The signature by `key`, as stored, of a blob whose header begins with the 64 bytes `header`."""
    if key.algorithm not in _NUMBERS:
        raise BlobSignatureError(f"key {key.key_id}: a blob cannot state the algorithm {key.algorithm!r:.40}")
    named = _HEAD.pack(_NUMBERS[key.algorithm], len(key.key_id), key.signature_size) + key.key_id.encode("ascii")
    value = key.sign(_CONTEXT + named + header)
    if not isinstance(value, bytes) or len(value) != key.signature_size:
        raise BlobSignatureError(f"key {key.key_id}: `sign` must return {key.signature_size} bytes")
    return named + value + sha256(named + value).digest()


def read_signature(source: Source, header: bytes) -> tuple[BlobSignature, int]:
    """The signature of a blob whose header begins with the 64 bytes `header`, and its size.

    Raises `BlobFormatError`.
    """
    head = bytes(source.read(_HEAD.size))
    number, id_size, size = _HEAD.unpack(head)
    if size != _SIZES.get(number) or not id_size:
        raise BlobFormatError(
            f"{source.where}: the signature has algorithm {number} and {size} bytes, its key's id has {id_size}; "
            f"expected 1 with {_SIZES[1]} bytes or 2 with {_SIZES[2]}, and an id; the blob was damaged"
        )
    stored_id, value = bytes(source.read(id_size)), bytes(source.read(size))
    if bytes(source.read(_DIGEST_SIZE)) != sha256(head + stored_id + value).digest():
        raise BlobFormatError(f"{source.where}: the signature does not match its hash; the blob was damaged")
    try:
        key_id = checked_key_id(stored_id.decode("latin-1"))
    except BlobSignatureError as e:
        raise BlobFormatError(f"{source.where}: the signature's {e}") from e
    algorithm = next(name for name, each in _NUMBERS.items() if each == number)
    signature = BlobSignature(algorithm, key_id, value, _CONTEXT + head + stored_id + header)
    return signature, _HEAD.size + id_size + size + _DIGEST_SIZE
