"""Files of keys: one line each, such as `engine-blob-key ed25519 public release-2026 3b6a27bc...`.

The second word is the algorithm; the third is the kind of the key: `secret` of HMAC and AES, `private` or `public` of
Ed25519; then its id and its bytes in hex. A file with a secret or private key is refused if others can read it, and one
with any key if others can change it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from engine.blob.encryption import AesGcmKey
from engine.blob.keys import Ed25519PrivateKey, Ed25519PublicKey, HmacKey, SigningKey, TrustedKey
from engine.blob.transform import SectionTransform
from engine.errors import BlobSignatureError, BlobTransformError
from engine.files import private_opener
from engine.files.permissions import exposure, secret_exposure

Key: TypeAlias = HmacKey | Ed25519PrivateKey | Ed25519PublicKey | AesGcmKey

ALGORITHMS: Final = (Ed25519PublicKey.algorithm, HmacKey.algorithm, AesGcmKey.algorithm)
_MAGIC: Final = "engine-blob-key"
_SECRET, _PRIVATE, _PUBLIC = "hmac-sha256 secret", "ed25519 private", "ed25519 public"
_CIPHER: Final = "aes-256-gcm secret"
_KINDS: Final[dict[str, Callable[[str, bytes], Key]]] = {
    _SECRET: HmacKey,
    _PRIVATE: Ed25519PrivateKey,
    _PUBLIC: Ed25519PublicKey,
    _CIPHER: AesGcmKey,
}
_MAX_BYTES: Final = 4096
_KEY_BYTES: Final = 32


def read_signing_key(path: str | os.PathLike[str]) -> SigningKey:
    """The key in a file that signs. Raises `BlobSignatureError`, `UnsupportedError` without `cryptography`."""
    key = _read_key(path)
    if isinstance(key, SigningKey):
        return key
    if isinstance(key, AesGcmKey):
        raise BlobSignatureError(f"key file {os.fspath(path)}: a key of {key.algorithm} encrypts, and cannot sign")
    raise BlobSignatureError(f"key file {os.fspath(path)}: a public key cannot sign; pass the file of the private key")


def read_encryption_key(path: str | os.PathLike[str]) -> AesGcmKey:
    """The key in a file that encrypts. Raises `BlobTransformError`, `UnsupportedError` without `cryptography`."""
    try:
        key = _read_key(path)
    except BlobSignatureError as e:
        raise BlobTransformError(str(e)) from e
    if isinstance(key, AesGcmKey):
        return key
    raise BlobTransformError(
        f"key file {os.fspath(path)}: a key of {key.algorithm} signs, and cannot encrypt; "
        f"`engine keygen ID --algorithm {AesGcmKey.algorithm}` makes one that can"
    )


def transform_of(given: SectionTransform | str | os.PathLike[str] | None) -> SectionTransform | None:
    """A transform that a caller gave, or the key in the file whose path it gave.

    Raises `BlobTransformError` for anything else, or a transform without a name, and the errors of
    `read_encryption_key`.
    """
    if given is None:
        return None
    if isinstance(given, SectionTransform):
        name = getattr(given, "name", None)
        if not isinstance(name, str) or not name:
            raise BlobTransformError(f"{type(given).__name__}.name is {name!r}; expected text, which blobs state")
        return given
    if isinstance(given, (str, os.PathLike)):
        return read_encryption_key(given)
    raise BlobTransformError(
        f"sections are stored by a SectionTransform, or the key in a file; got {type(given).__name__}"
    )


def read_trusted_keys(paths: Sequence[str | os.PathLike[str]]) -> dict[str, TrustedKey]:
    """The keys in files that verify, by id. Raises `BlobSignatureError`, `UnsupportedError` without `cryptography`."""
    keys: dict[str, TrustedKey] = {}
    for path in paths:
        key, where = _read_key(path), f"key file {os.fspath(path)}"
        if isinstance(key, AesGcmKey):
            raise BlobSignatureError(f"{where}: a key of {key.algorithm} encrypts, and cannot verify")
        if not isinstance(key, TrustedKey):
            raise BlobSignatureError(f"{where}: a private key belongs where blobs are signed; trust its public key")
        if key.key_id in keys:
            raise BlobSignatureError(f"{where}: another trusted key has the id {key.key_id!r}; ids are unique")
        keys[key.key_id] = key
    return keys


def make_key_files(path: str | os.PathLike[str], key_id: str, algorithm: str) -> list[str]:
    """Write a new key to `path`, and for Ed25519 its public key to `path` with `.pub` appended; return the names.

    Existing files are not overwritten. Raises `BlobSignatureError`, `UnsupportedError` without `cryptography`.
    """
    name, data = os.fspath(path), os.urandom(_KEY_BYTES)
    if algorithm == HmacKey.algorithm:
        HmacKey(key_id, data)
        contents = {name: _line(_SECRET, key_id, data)}
    elif algorithm == AesGcmKey.algorithm:
        AesGcmKey(key_id, data)
        contents = {name: _line(_CIPHER, key_id, data)}
    elif algorithm == Ed25519PrivateKey.algorithm:
        public = Ed25519PrivateKey(key_id, data).public_bytes
        contents = {name: _line(_PRIVATE, key_id, data), f"{name}.pub": _line(_PUBLIC, key_id, public)}
    else:
        raise BlobSignatureError(f"algorithm {algorithm!r:.40} of a key; expected one of {', '.join(ALGORITHMS)}")
    for each in contents:
        if os.path.lexists(each):
            raise BlobSignatureError(f"key file {each} exists, and keys are not overwritten; choose another name")
    for each, content in contents.items():
        try:
            with open(each, "x", encoding="ascii", opener=private_opener if each == name else None) as file:
                file.write(content)
        except (OSError, ValueError) as e:
            raise BlobSignatureError(f"key file {each} cannot be written: {getattr(e, 'strerror', None) or e}") from e
    return list(contents)


def _line(kind: str, key_id: str, data: bytes) -> str:
    return f"{_MAGIC} {kind} {key_id} {data.hex()}\n"


def _read_key(path: str | os.PathLike[str]) -> Key:
    where = f"key file {os.fspath(path)}"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BlobSignatureError(f"{where}: not a regular file")
        if (why := exposure(path)) is not None:
            raise BlobSignatureError(f"{where}: another user could replace the key: {why}")
        with open(path, "rb") as file:
            words = file.read(_MAX_BYTES).decode("ascii", errors="replace").split()
        kind = " ".join(words[1:3])
        if len(words) != 5 or words[0] != _MAGIC or kind not in _KINDS:
            raise BlobSignatureError(
                f"{where}: not a key; expected one line `{_MAGIC} KIND ID HEX`, where KIND is one of "
                f"{', '.join(_KINDS)}; `engine keygen` writes such files"
            )
        if kind != _PUBLIC and (why := secret_exposure(path)) is not None:
            raise BlobSignatureError(f"{where}: the key is not secret: {why}")
    except (OSError, ValueError) as e:
        raise BlobSignatureError(f"{where} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    try:
        data = bytes.fromhex(words[4])
    except ValueError:  # whose message has the characters of the key
        raise BlobSignatureError(f"{where}: the bytes of the key are not in hex") from None
    return _KINDS[kind](words[3], data)
