"""Encryption of sections by AES-256 in Galois/counter mode (NIST SP 800-38D).

A section is encrypted in pieces of `PIECE` bytes, each stored as its nonce (12 bytes, random), the ciphertext, and the
tag (16 bytes). Authenticated with a piece are the section's context, the piece's number, and whether it is the last
(the construction STREAM of Hoang, Reyhanitabar, Rogaway and Vizar, 2015): pieces cannot be exchanged, repeated or left
out. With random nonces, one key is good for 2**32 pieces, 64 PiB.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Final

from engine.blob.keys import checked_key_id
from engine.blob.transform import SectionTransform
from engine.errors import BlobTransformError, UnsupportedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PIECE: Final = 16 * 2**20
"""The bytes of a piece before encryption; the last one may be shorter, and is empty only if the section is."""
KEY_BYTES: Final = 32
_NONCE: Final = 12
_TAG: Final = 16
_POSITION: Final = struct.Struct("<Q?")


class AesGcmKey(SectionTransform):
    """A secret key of 32 bytes, which encrypts and decrypts. No key is logged, and `repr` shows its id only.

    Raises `BlobTransformError` for another length or an invalid id, `UnsupportedError` without the package
    `cryptography`.
    """

    algorithm: Final = "aes-256-gcm"

    def __init__(self, key_id: str, secret: bytes) -> None:
        self.key_id = checked_key_id(key_id)
        self.name = f"{self.algorithm} {self.key_id}"
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
            raise BlobTransformError(f"key {key_id}: expected {KEY_BYTES} bytes, the secret of AES-256")
        self._cipher = _cipher(key_id, secret)

    def apply(self, data: memoryview, context: bytes) -> bytes:
        """`data`, encrypted; 28 bytes longer for each piece."""
        pieces = []
        for number, start in enumerate(range(0, max(len(data), 1), PIECE)):
            nonce = os.urandom(_NONCE)
            position = _POSITION.pack(number, start + PIECE >= len(data))
            pieces += [nonce, self._cipher.encrypt(nonce, data[start : start + PIECE], context + position)]
        return b"".join(pieces)

    def restore(self, data: memoryview, context: bytes) -> bytes:
        """The decrypted bytes. Raises `BlobTransformError` if it was not encrypted with this key in this place."""
        from cryptography.exceptions import InvalidTag

        stored = PIECE + _NONCE + _TAG
        pieces = []
        for number, start in enumerate(range(0, max(len(data), 1), stored)):
            piece = data[start : start + stored]
            position = _POSITION.pack(number, start + stored >= len(data))
            try:
                pieces.append(self._cipher.decrypt(bytes(piece[:_NONCE]), piece[_NONCE:], context + position))
            except (InvalidTag, ValueError) as e:
                raise BlobTransformError(
                    f"it was not encrypted with this key, or was changed afterwards; the id of the key is "
                    f"{self.key_id!r}, and another key may have the same id"
                ) from e
        return b"".join(pieces)

    def __repr__(self) -> str:
        return f"<AesGcmKey {self.key_id}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: keys are read from their files")


def _cipher(key_id: str, secret: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as e:
        raise UnsupportedError(
            f"key {key_id}: encryption needs the package cryptography, which is not installed: "
            "pip install 'engine-sdk[sign]'"
        ) from e
    return AESGCM(secret)
