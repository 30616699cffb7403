"""`LimitedProcess`: work on what others wrote, in a process with limits, which only its end can enforce."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

from engine.errors import UnsupportedError

_WALL_SECONDS: Final = 60
"""How long is waited for a reply, and for the start of the process, on a machine that is busy with other work."""


class LimitedProcess:
    """A program (`limited_program`) that answers requests one after another. Thread-safe.

    It runs from the first request on until `close`, or the end of this process. If it exceeds its limits it is ended,
    and the next request starts it again.

    Args:
        module: the program.
        begin: its first line.
        what: the subject of messages, such as "the chat template".
        cpu_seconds: the most CPU time of a reply.
        memory_bytes: of the process.
    """

    def __init__(
        self, module: str, begin: Mapping[str, Any], what: str, *, cpu_seconds: float, memory_bytes: int
    ) -> None:
        self._module, self._begin, self._what = module, begin, what
        self._cpu_seconds, self._memory_bytes = cpu_seconds, memory_bytes
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        """The process, if there is one."""
        self._is_closed = False
        weakref.finalize(self, _end_all, self._running, os.getpid())

    def reply(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request. Blocks. Raises `UnsupportedError` if a limit is exceeded, or after `close`."""
        with self._lock:
            if self._is_closed:
                raise UnsupportedError("the model was replaced or unloaded; send the request again")
            if self._running and self._running[0].poll() is not None:
                _end(self._running.pop())
            if not self._running:
                self._running.append(self._started())
            process = self._running[0]
            reply = _exchanged(process, asked)
        if reply is None:
            raise UnsupportedError(f"{self._what} {self._why(process)}")
        return reply

    def close(self) -> None:
        """End the process; a request in progress ends with an error. Further calls have no effect."""
        self._is_closed = True
        for process in list(self._running):
            process.kill()
        if self._lock.acquire(blocking=False):  # otherwise, the thread that reads finds that the process has ended
            try:
                _end_all(self._running, os.getpid())
            finally:
                self._lock.release()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, str(self._cpu_seconds), str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the server, which answers its requests before
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        with contextlib.suppress(OSError):  # it has ended, which the first request finds
            _write(process, self._begin)
        return process

    def _why(self, process: subprocess.Popen[bytes]) -> str:
        if process.returncode == -signal.SIGPROF:
            return f"took more than {self._cpu_seconds:g} s of CPU time, and was stopped"
        return f"was not done within the limits of its process, which ended with status {process.returncode}"


def _exchanged(process: subprocess.Popen[bytes], asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of the process; None if there is none, in which case the process has ended."""
    line = b""
    with contextlib.suppress(OSError):  # it has ended
        _write(process, asked)
        line = _line(process)
    if line.endswith(b"\n"):
        reply: dict[str, Any] = json.loads(line)
        return reply
    _end(process)
    return None


def _write(process: subprocess.Popen[bytes], value: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """What the process writes up to the end of a line, or until it ends or takes too long."""
    assert process.stdout is not None
    found, end = bytearray(), time.monotonic() + _WALL_SECONDS
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while not found.endswith(b"\n"):
        if not poll.poll(max(0.0, end - time.monotonic()) * 1e3):
            break
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        found += part
    return bytes(found)


def _end_all(running: list[subprocess.Popen[bytes]], pid: int) -> None:
    """End processes that the process `pid` has started, if it is this one, and not a fork of it."""
    while running and os.getpid() == pid:
        _end(running.pop())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which nobody reads any more."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what it has not read
            if pipe is not None:
                pipe.close()
