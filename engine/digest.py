"""SHA-256 from a module that is loaded with its first use: OpenSSL takes 4 MB, which compiling does without."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes | memoryview = b"") -> _Hash:
    """As `hashlib.sha256`."""
    import hashlib

    return hashlib.sha256(data)
