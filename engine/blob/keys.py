"""The keys that sign blobs, and those whose signatures are trusted.

Two algorithms: `hmac-sha256`, whose one secret key both signs and verifies, so that whoever can verify can forge; and
`ed25519` (RFC 8032), whose private key signs and whose public key verifies, by the package `cryptography`
(`engine-sdk[sign]`). A key has an id, which a blob's signature names, so that several keys can be trusted at a time
while one replaces another. No key is ever logged, and `repr` shows its id only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from engine.errors import BlobSignatureError, UnsupportedError

if TYPE_CHECKING:
    from types import ModuleType

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MIN_SECRET: Final = 32
"""Bytes: the length of the hash, which RFC 2104 recommends as the minimum."""


def checked_key_id(key_id: object) -> str:
    """`key_id`, if it is one. Raises `BlobSignatureError`."""
    if isinstance(key_id, str) and _ID.fullmatch(key_id):
        return key_id
    raise BlobSignatureError(
        f"key id {key_id!r:.80}: expected 1 to 64 letters, digits, '.', '_' and '-', the first one a letter or digit"
    )


class TrustedKey(ABC):
    """A key that verifies signatures.

    Attributes:
        key_id: 1 to 64 letters, digits, `.`, `_` and `-`, the first one a letter or digit.
    """

    algorithm: ClassVar[str]
    signature_size: ClassVar[int]
    """In bytes."""

    def __init__(self, key_id: str) -> None:
        self.key_id = checked_key_id(key_id)

    @abstractmethod
    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's of `message`, in a time that does not depend on how wrong it is."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key_id}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: keys are read from their files")


class SigningKey(ABC):
    """A key that signs blobs; subclass it for a key that another program or device holds."""

    algorithm: ClassVar[str]
    signature_size: ClassVar[int]
    key_id: str

    @abstractmethod
    def sign(self, message: bytes) -> bytes:
        """The signature of `message`, of `signature_size` bytes."""


class HmacKey(TrustedKey, SigningKey):
    """A secret of 32 bytes or more, which signs and verifies by HMAC-SHA256 (RFC 2104)."""

    algorithm = "hmac-sha256"
    signature_size = 32

    def __init__(self, key_id: str, secret: bytes) -> None:
        super().__init__(key_id)
        if not isinstance(secret, bytes) or len(secret) < _MIN_SECRET:
            raise BlobSignatureError(f"key {key_id}: expected {_MIN_SECRET} bytes or more, the secret of HMAC-SHA256")
        self._secret = secret

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`: 32 bytes of HMAC-SHA256."""
        import hmac

        return hmac.digest(self._secret, message, "sha256")

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether this key made `signature` for `message`; compared in constant time."""
        import hmac

        return hmac.compare_digest(self.sign(message), signature)


class Ed25519PublicKey(TrustedKey):
    """A public key of 32 bytes, which verifies. Raises `UnsupportedError` without the package `cryptography`."""

    algorithm = "ed25519"
    signature_size = 64

    def __init__(self, key_id: str, data: bytes) -> None:
        super().__init__(key_id)
        try:
            self._key = _ed25519(key_id).Ed25519PublicKey.from_public_bytes(data)
        except (ValueError, TypeError) as e:
            raise BlobSignatureError(f"key {key_id}: not a public key of Ed25519; expected 32 bytes") from e

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` was made with the private key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Ed25519PrivateKey(SigningKey):
    """A private key of 32 bytes, which signs. Raises `UnsupportedError` without the package `cryptography`."""

    algorithm = "ed25519"
    signature_size = 64

    def __init__(self, key_id: str, data: bytes) -> None:
        self.key_id = checked_key_id(key_id)
        try:
            self._key = _ed25519(key_id).Ed25519PrivateKey.from_private_bytes(data)
        except (ValueError, TypeError) as e:
            raise BlobSignatureError(f"key {key_id}: not a private key of Ed25519; expected 32 bytes") from e
        self.public_bytes: bytes = self._key.public_key().public_bytes_raw()
        """The public key."""
        self.public = Ed25519PublicKey(key_id, self.public_bytes)

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`: 64 bytes of Ed25519 (RFC 8032)."""
        signature: bytes = self._key.sign(message)
        return signature

    def __repr__(self) -> str:
        return f"<Ed25519PrivateKey {self.key_id}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: keys are read from their files")


def _ed25519(key_id: str) -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as e:
        raise UnsupportedError(
            f"key {key_id}: Ed25519 needs the package cryptography, which is not installed: "
            "pip install 'engine-sdk[sign]'; or use a key of hmac-sha256"
        ) from e
    return ed25519
