"""`Tokens`: which clients may use the server, by a token that they send, and the files of TLS."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.errors import ServingError
from engine.files.permissions import secret_exposure

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,4096}")
"""The characters of RFC 6750, section 2.1; fewer than 16 can be guessed."""


class Tokens:
    """Tokens; a request must have one of them, in its header `authorization`: `Bearer TOKEN`."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token) for token in tokens]

    def __repr__(self) -> str:
        return f"<{len(self._digests)} tokens>"

    def accepts(self, header: str | None) -> bool:
        """Whether the value of the header has one of the tokens. The time does not depend on how many characters are
        right.
        """
        scheme, _, token = (header or "").partition(" ")
        given = _digest(token.strip())
        found = [hmac.compare_digest(given, each) for each in self._digests]
        return scheme.lower() == "bearer" and any(found)


def read_tokens(path: Path) -> Tokens:
    """The tokens in a file, one a line; empty lines, and those that begin with #, do not count.

    Raises `ServingError` if others can read or change the file, if it cannot be read, has no token, or has one that is
    shorter than 16 characters or has others than letters, digits and `._~+/=-`.
    """
    text = _secret(path, "file of tokens")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise ServingError(
                f"{path}, line {number}: a token has at least 16 letters, digits or characters of ._~+/=- and nothing "
                "else; make one by: openssl rand -hex 32"
            )
        found.append(token)
    if not found:
        raise ServingError(f"{path} has no token; expected one a line, such as: openssl rand -hex 32")
    return Tokens(found)


def check_tls(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """The bytes of a certificate (with its chain) and its private key, in PEM form.

    Raises `ServingError` if others can read or change the key, or if the two cannot be read or do not fit.
    """
    secret = _secret(key, "private key")
    try:
        chain = certificate.read_bytes()
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError, ValueError) as e:
        raise ServingError(
            f"{certificate} and {key} are not a certificate and its private key without a password, in PEM form: {e}"
        ) from e
    return chain, secret.encode()


def _secret(path: Path, what: str) -> str:
    try:
        why = secret_exposure(path)
        if why is not None:
            raise ServingError(f"{what}: {why}")
        return os.fsdecode(path.read_bytes())
    except (OSError, ValueError) as e:
        raise ServingError(f"the {what} {path} cannot be read: {e}") from e


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
