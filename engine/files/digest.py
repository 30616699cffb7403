"""SHA-256, whose module is loaded on first use: OpenSSL takes 4 MB, and compiling does not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes | memoryview = b"") -> _Hash:
    """Like `hashlib.sha256`, which is imported at the first call."""
    import hashlib

    return hashlib.sha256(data)
