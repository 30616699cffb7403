"""`ServerOptions`: settings of the server as a whole, not of single models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_ANSWER_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server listens, and what it accepts.

    Attributes:
        host: the address to listen at; "0.0.0.0" for all.
        http_port, grpc_port: 0 for any free one; None for no server of gRPC.
        max_body_bytes: the longest body, or message, of a request.
        max_answer_bytes: the longest answer of an inference, as it is before it is written.
        max_requests: how many requests may be in memory at once; further ones are refused.
        body_seconds: how long a client may take to send a body, and (on Linux, HTTP) take nothing of an answer.
        grace_seconds: how long requests that were accepted may take after the signal to end.
        drain_seconds: how long the server still accepts requests after the signal, while it reports that it is not
            ready.
        stuck_seconds: an inference that takes longer makes the server not alive.
        allows_loading: whether clients may load, reload and unload models.
        shares_memory: whether clients may send and take tensors by shared memory of the server's user.
        memory_limit: how many bytes all models may take; None for no limit.
        certificate, private_key: files in PEM form, for TLS with both protocols; None for none.
        tokens: a file with a token in each line; a request must have one of them; None for no such requirement.
    """

    host: str = "127.0.0.1"
    http_port: int = 8080
    grpc_port: int | None = 8081
    max_body_bytes: int = 64 << 20
    max_answer_bytes: int = MAX_ANSWER_BYTES
    max_requests: int = 1024
    body_seconds: float = 30.0
    grace_seconds: int = 30
    drain_seconds: float = 0.0
    stuck_seconds: float = 600.0
    allows_loading: bool = True
    shares_memory: bool = False
    memory_limit: int | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    tokens: Path | None = None
