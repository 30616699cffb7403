"""`Trial`: the first compilation and the first run of a kernel, in a process of their own.

A driver's compiler can end the process that it runs in. What it ends here is the child.
"""

from __future__ import annotations

import base64
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from engine.errors import DeviceError
from engine.runtime.lifecycle import ForkSafeLock
from engine_opencl.device import OpenclDevice
from engine_opencl.plan import Launch

_WORKER: Final = Path(__file__).with_name("trial_worker.py")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source to try, with the kernels of it that are run, and the sizes of their arguments: bytes, or a number.

    Attributes:
        binary: what another process compiled of it; tried instead, if it is not empty.
    """

    key: str
    source: str
    launches: tuple[Launch, ...]
    sizes: tuple[tuple[int | np.generic, ...], ...]
    binary: bytes = b""

    @property
    def kernels(self) -> str:
        """Their names, for messages."""
        return ", ".join(f"`{launch.kernel}`" for launch in self.launches)


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a candidate: its binary, or why it cannot be compiled, or how the process ended."""

    candidate: Candidate
    binary: bytes = b""
    failed: str = ""
    crashed: str = ""
    refused: str = ""
    note: str = ""


class Trial:
    """Tries sources for one device, in a child that is started when first needed and then kept. Thread-safe."""

    def __init__(self, device: OpenclDevice, command: Sequence[str] | None = None) -> None:
        self._device = device
        # -P: modules beside the script must not hide those of the same names elsewhere.
        self._command = command or [sys.executable, "-P", str(_WORKER)]
        self._child: _Child | None = None
        self._lock = ForkSafeLock()

    def run(self, candidates: Sequence[Candidate], options: Sequence[str], seconds: float) -> Iterator[Tried]:
        """The results, in order; ends with the first candidate that ended the child, or took longer than `seconds`.

        Raises `DeviceError` where no child can be started.
        """
        with self._lock:
            if self._child is None or not self._child.is_alive:
                self._child = _Child(self._command)
            child = self._child
            platform, device = self._device.position
            items = [_item(candidate) for candidate in candidates]
            header = {"paths": sys.path, "platform": platform, "device": device, "options": list(options)}
            child.send({**header, "items": items})
            for candidate in candidates:
                result = self._result(child, candidate, seconds)
                if result.crashed:
                    child.stop()
                    self._child = None
                yield result
                if result.crashed:
                    return

    def _result(self, child: _Child, candidate: Candidate, seconds: float) -> Tried:
        begun, answer = child.receive(seconds), None
        if begun is not None:
            answer = child.receive(seconds)
        if answer is None:
            how = child.how_it_ended(seconds)
            if begun is None and child.is_first_answer:
                raise DeviceError(
                    f"OPENCL: the process that tries kernels for {self._device.facts.name} {how}; set "
                    "KERNEL_TRIAL_SECONDS to 0 to compile in this process"
                )
            return Tried(candidate, crashed=how)
        binary = base64.b64decode(answer.get("done", ""))
        return Tried(
            candidate,
            binary,
            answer.get("failed", ""),
            refused=answer.get("refused", ""),
            note=answer.get("note", ""),
        )


class _Child:
    """The process, and a thread that reads what it answers."""

    def __init__(self, command: Sequence[str]) -> None:
        self.is_first_answer = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the process
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except OSError as e:
            self._errors.close()
            raise DeviceError(
                f"OPENCL: the process that tries kernels cannot be started ({e}); set KERNEL_TRIAL_SECONDS to 0 to "
                "compile in this process"
            ) from e
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True).start()
        # The child ends with its input; it holds nothing that would have to be saved.
        self._finalizer = weakref.finalize(self, _end, self._process, self._errors, os.getpid())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, batch: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        # A child that is gone says so by giving no answer.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(batch) + "\n")
            self._process.stdin.flush()

    def receive(self, seconds: float) -> dict[str, str] | None:
        """The next answer; None where the child has ended or takes too long."""
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
        """For a message: the signal, the code or the time, and the last that it said."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return f"did not end within {seconds:g} s"
        self._errors.seek(0)
        said = " ".join(self._errors.read().decode(errors="replace").split())[-300:]
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{how} ({said})" if said else how

    def stop(self) -> None:
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


def _item(candidate: Candidate) -> dict[str, Any]:
    launches = [
        {
            "kernel": launch.kernel,
            "arguments": [["buffer", s] if isinstance(s, int) else [s.dtype.name, s.item()] for s in sizes],
            "global": launch.global_size,
            "local": launch.local_size,
        }
        for launch, sizes in zip(candidate.launches, candidate.sizes, strict=True)
    ]
    binary = base64.b64encode(candidate.binary).decode()
    return {"key": candidate.key, "source": candidate.source, "binary": binary, "launches": launches}
