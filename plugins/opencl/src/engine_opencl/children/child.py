"""`Child`: a child process, which drivers may crash, with its requests and answers; see `trial_worker`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from engine.errors import DeviceError
from engine.threads import start_thread

WORKER: Final = Path(__file__).with_name("trial_worker.py")
COMMAND: Final = (sys.executable, "-P", str(WORKER))
"""-P: modules beside the script must not shadow others."""


def has_interpreter() -> bool:
    """Whether `sys.executable` is an interpreter: in a frozen application it is the application itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class Child:
    """The process, and a thread that reads its answers."""

    def __init__(self, command: Sequence[str]) -> None:
        self.is_first_answer = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # The child does not need pyopencl's cache, and would fail if that is not writable.
                env={**os.environ, "PYOPENCL_NO_CACHE": "1"},
            )
        except OSError as e:
            self._errors.close()
            raise DeviceError(
                f"OPENCL: the child process that tries kernels cannot be started ({e}); "
                "set KERNEL_TRIAL_SECONDS to 0 to compile in this process"
            ) from e
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # The child exits when its input is closed; it has no state to save.
        self._finalizer = weakref.finalize(self, _end, self._process, self._errors, os.getpid())
        start_thread(threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True))

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs; a driver may have crashed it."""
        return self._process.poll() is None

    def send(self, batch: dict[str, Any]) -> None:
        """Send a request; `receive` returns the answers."""
        assert self._process.stdin is not None
        # If the child has exited, `receive` returns no answer.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(batch) + "\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> dict[str, str] | None:
        """The next answer; None if the child has ended or takes too long."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            return None
        self.is_first_answer = False
        answer: dict[str, str] = json.loads(line)
        return answer

    def how_it_ended(self, seconds: float) -> str:
        """The signal, exit code or timeout, and the end of its standard error, for messages."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return f"did not end within {seconds:g} s"
        self._errors.seek(0)
        said = " ".join(self._errors.read().decode(errors="replace").split())[-300:]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{how} ({said})" if said else how

    def stop(self) -> None:
        """Terminate the process, unless it has ended."""
        self._finalizer()


def _end(process: subprocess.Popen[str], errors: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, errors):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


def _read(stream: IO[str], answers: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(None)
