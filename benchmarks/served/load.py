"""Clients of an HTTP server in one thread, which send one prepared request again and again."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

_ANSWER_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """What some seconds of requests gave.

    Attributes:
        rate: answers per second.
        latencies: of each answer, in seconds.
        server_cpu, client_cpu: seconds of CPU time for each answer, of the server's processes and of the clients.
    """

    rate: float
    latencies: list[float]
    server_cpu: float
    client_cpu: float


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    sent: int = 0
    began: float = 0.0
    received: list[bytes] = field(default_factory=list)
    missing: int | None = None
    """Bytes that the answer still lacks; None until its head has arrived."""


def request(path: str, body: bytes, headers: dict[str, str], host: str) -> bytes:
    """A POST request as it is sent."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask(address: str, message: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the answer to one request. Raises RuntimeError unless its status is 200."""
    connection = _connect(address)
    connection.socket.settimeout(_ANSWER_SECONDS)
    with connection.socket:
        connection.socket.sendall(message)
        while not _read(connection):
            pass
    return _split(b"".join(connection.received))


def talk(address: str, message: bytes, clients: int, seconds: float, server: int) -> Load:
    """Let clients send a request and wait for the answer, for some seconds, and until the last answer.

    One thread serves all connections, and does not decode the answers, so that it takes little of the cores that the
    server needs.

    Args:
        server: the process of the server.
    """
    connections = {c.socket.fileno(): c for c in (_connect(address) for _ in range(clients))}
    poll = select.epoll()
    latencies: list[float] = []
    cpu, own_cpu, begin = cpu_seconds(server), time.process_time(), time.perf_counter()
    for number, connection in connections.items():
        poll.register(number, select.EPOLLIN)
        _send(poll, number, connection, message)
    end, busy = begin + seconds, clients
    while busy:  # a server goes on with requests whose clients have gone, which would slow the next measurement
        for number, _ in poll.poll(_ANSWER_SECONDS) or _refuse():
            connection = connections[number]
            if connection.sent < len(message):
                _send(poll, number, connection, message)
            elif _read(connection):
                now = time.perf_counter()
                latencies.append(now - connection.began)
                connection.sent = 0
                if now < end:
                    _send(poll, number, connection, message)
                else:
                    poll.unregister(number)  # the server may close it while it is idle
                    busy -= 1
    spent = time.perf_counter() - begin
    used, own_used = cpu_seconds(server) - cpu, time.process_time() - own_cpu
    poll.close()
    for connection in connections.values():
        connection.socket.close()
    count = len(latencies)
    return Load(count / spent, latencies, used / count, own_used / count)


def cpu_seconds(process: int) -> float:
    """CPU time of a process and its children that run, in seconds."""
    folder = Path(f"/proc/{process}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        children = [int(c) for task in (folder / "task").iterdir() for c in (task / "children").read_text().split()]
    except FileNotFoundError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS + sum(map(cpu_seconds, children))


def _refuse() -> NoReturn:
    raise RuntimeError(f"the server did not answer for {_ANSWER_SECONDS:g} s")


def _connect(address: str) -> _Connection:
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), 60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    return _Connection(made)


def _send(poll: select.epoll, number: int, connection: _Connection, message: bytes) -> None:
    """Send as much of the request as the system takes; the rest when it takes more."""
    if not connection.sent:
        connection.began, connection.received, connection.missing = time.perf_counter(), [], None
    before = connection.sent
    with contextlib.suppress(BlockingIOError):
        connection.sent += connection.socket.send(memoryview(message)[before:])
    if connection.sent < len(message):
        poll.modify(number, select.EPOLLOUT)
    elif before:
        poll.modify(number, select.EPOLLIN)


def _read(connection: _Connection) -> bool:
    """Read what has arrived; whether the answer is complete."""
    part = connection.socket.recv(1 << 20)
    if not part:
        raise RuntimeError("the server has closed the connection")
    connection.received.append(part)
    if connection.missing is None:
        so_far = b"".join(connection.received)
        connection.received = [so_far]
        if b"\r\n\r\n" not in so_far:
            return False
        head, body = _split(so_far)
        length = _header(head, b"content-length")
        connection.missing = -1 if length is None else int(length) - len(body)
    elif connection.missing >= 0:
        connection.missing -= len(part)
    if connection.missing >= 0:
        return connection.missing == 0
    return b"".join(connection.received[-5:]).endswith(b"\r\n0\r\n\r\n")  # sent in chunks


def _split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server answered {head[:80]!r}: {body[:500]!r}")
    if _header(head, b"transfer-encoding") == b"chunked" and body.endswith(b"0\r\n\r\n"):
        parts = []
        while body:
            size, _, body = body.partition(b"\r\n")
            parts.append(body[: int(size, 16)])
            body = body[int(size, 16) + 2 :]
        body = b"".join(parts)
    return head, body


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None
