"""`Connection`: messages of bytes, and file descriptors, between two processes. Nothing that is received is run."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from engine.errors import DeviceError

_HEADER: Final = struct.Struct("<IB")
"""The bytes of a message, and how many descriptors it has."""
_CHUNK: Final = 1 << 16
_MAX_FDS: Final = 8
_ANCILLARY: Final = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


class Connection:
    """One end of a pair of sockets. One thread at a time may send, and one may receive."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._received = bytearray()
        self._fds: deque[int] = deque()

    @classmethod
    def pair(cls) -> tuple[Connection, socket.socket]:
        """A connection, and the end of it that the other process gets."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        """The descriptor of the socket; -1 after `close`."""
        return self.socket.fileno()

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, and copies of descriptors. Raises `OSError` if the other process has ended."""
        data = _HEADER.pack(len(message), len(fds)) + message
        if fds:
            sent = socket.send_fds(self.socket, [data], list(fds), socket.MSG_NOSIGNAL)
            data = data[sent:]
        if data:
            self.socket.sendall(data, socket.MSG_NOSIGNAL)

    def receive(self, wait: Callable[[], None] | None = None) -> tuple[bytes, list[int]]:
        """The next message and its descriptors, which the caller closes.

        `wait` returns when something can be read, or raises; without it, the call blocks. Raises `EOFError` if the
        other process has closed its end, or has ended.
        """
        while (found := self._complete()) is None:
            if wait is not None:
                wait()
            self._read()
        return found

    def _complete(self) -> tuple[bytes, list[int]] | None:
        received = self._received
        if len(received) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(received)
        end = _HEADER.size + length
        if len(received) < end or len(self._fds) < count:
            return None
        message = bytes(received[_HEADER.size : end])
        del received[:end]
        return message, [self._fds.popleft() for _ in range(count)]

    def _read(self) -> None:
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_CHUNK, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as e:
            raise EOFError(str(e)) from e
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if not data or flags & socket.MSG_CTRUNC:
            raise EOFError
        self._received += data

    def shut_down(self) -> None:
        """Let both ends find that nothing more is sent. The descriptor stays open."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close this end. Further calls have no effect."""
        with suppress(OSError):
            self.socket.close()
        while self._fds:
            with suppress(OSError):
                os.close(self._fds.popleft())


def encoded(value: object) -> bytes:
    """A value as JSON, with characters that a damaged name may have."""
    return json.dumps(value, separators=(",", ":")).encode()


def decoded(message: bytes) -> Any:
    """The value of a JSON message. Raises `DeviceError` for other bytes."""
    try:
        return json.loads(message)
    except (ValueError, RecursionError) as e:
        raise DeviceError(f"the other process sent something else than JSON: {e}") from e
