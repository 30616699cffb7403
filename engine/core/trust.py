"""Whose blobs are trusted, by TRUSTED_KEYS and REQUIRE_SIGNATURE.

A wrong signature by a trusted key is always an error. A signature by any other key says nothing here, so such a blob is
treated like one without a signature: as data that a stranger may have written, and refused if signatures are required.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.blob import BlobCheck, BlobReader, BlobSignature, TrustedKey, WeightsFile, read_trusted_keys
from engine.core.settings import REQUIRE_SIGNATURE, TRUSTED_KEYS
from engine.errors import BlobSignatureError
from engine.files.permissions import exposure
from engine.properties import Config

if TYPE_CHECKING:
    from engine.blob import BlobRelease

_log = logging.getLogger("engine.blob")


def verify_blob(reader: BlobReader, settings: Config, release: BlobRelease | None = None) -> None:
    """Verify the signature of a blob, and what its transform authenticates, before anything in it is used.

    Raises `BlobSignatureError` if the signature is wrong, if one by a trusted key is required, or if the blob is not
    the `release` or a later one; `BlobTransformError` for a wrong key; and the errors of reading keys.
    """
    reader.authenticate()
    if reader.is_covered:
        return
    keys = _trusted_keys(settings)
    reader.verify_signature(keys)
    if not reader.is_trusted and (settings[REQUIRE_SIGNATURE] or release is not None):
        raise BlobSignatureError(f"{reader.where}: {_why_not(reader.signature, list(keys), release)}")
    if release is not None and (why := release.why_not(reader.manifest)) is not None:
        raise BlobSignatureError(f"{reader.where}: {why}; get the current one from its author")
    if reader.is_trusted:
        _log.info("%s is trusted: key %s has signed it", reader.where, reader.signature and reader.signature.key_id)
    reader.admit()


def with_signature(check: BlobCheck, where: str, settings: Config, release: BlobRelease | None = None) -> BlobCheck:
    """`check`, with what `verify_blob` would find as `is_trusted` or as a reason. Raises the errors of reading keys."""
    if check.manifest is None:
        return check
    keys, signature = _trusted_keys(settings), check.signature
    key = keys.get(signature.key_id) if signature is not None else None
    if signature is not None and key is not None:
        try:
            signature.verify(key, where)
        except BlobSignatureError as e:
            return replace(check, reasons=(*check.reasons, str(e)))
        why = None if release is None else release.why_not(check.manifest)
        return replace(check, is_trusted=True, reasons=check.reasons if why is None else (*check.reasons, why))
    if settings[REQUIRE_SIGNATURE] or release is not None:
        return replace(check, reasons=(*check.reasons, _why_not(signature, list(keys), release)))
    return check


def may_be_mapped(path: object, settings: Config) -> bool:
    """Whether no other user can change the blob in a file after its signature is verified; True if no signature is
    verified.
    """
    return not _verifies(settings) or _is_private(path)


def may_be_used_in_place(file: WeightsFile, settings: Config, is_encrypted: bool) -> bool:
    """Whether no other user can change the weights of a blob after they are verified; True if no key verifies them.

    `is_encrypted`: the key of the encrypted blob verifies them. Raises `BlobError` for a file that cannot be read.
    """
    return not (is_encrypted or _verifies(settings)) or all(map(_is_private, file.files()))


def _verifies(settings: Config) -> bool:
    return bool(settings[TRUSTED_KEYS] or settings[REQUIRE_SIGNATURE])


def _is_private(path: object) -> bool:
    try:
        why = exposure(path)  # type: ignore[arg-type]
    except (OSError, ValueError) as e:  # which reading the file reports
        why = str(e)
    if why is not None:
        _log.warning("%s is read, not mapped: after its content is verified, %s", path, why)
    return why is None


def _trusted_keys(settings: Config) -> dict[str, TrustedKey]:
    paths: tuple[str, ...] = settings[TRUSTED_KEYS]
    return read_trusted_keys(paths)


def _why_not(signature: BlobSignature | None, trusted: list[str], release: BlobRelease | None) -> str:
    listed = ", ".join(trusted) or "none"
    found = "is not signed" if signature is None else f"is signed by key {signature.key_id!r}, which is not trusted"
    required = f"{REQUIRE_SIGNATURE.name} is set" if release is None else f"release {release} is required"
    return (
        f"the blob {found}, and {required}; keys in {TRUSTED_KEYS.name}: {listed}. Sign it with one of them "
        "(`engine compile --sign`), or trust its key"
    )
