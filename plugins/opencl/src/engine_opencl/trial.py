"""`Trial`: the first compilation and the first run of a kernel, in a process of their own.

A driver's compiler can end the process that it runs in. What it ends here is the child.
"""

from __future__ import annotations

import base64
import contextlib
import functools
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from engine.errors import DeviceError
from engine.runtime.lifecycle import ForkSafeLock
from engine_opencl.device import OpenclDevice
from engine_opencl.plan import Launch

_WORKER: Final = Path(__file__).with_name("trial_worker.py")
_MOST_CHILDREN: Final = min(os.cpu_count() or 1, 4)
"""Each holds a driver's compiler in memory, some hundred MB."""
_SHARE: Final = 4
"""Candidates that compile for as long as another child takes to start."""


@functools.cache
def trial_of(device: OpenclDevice) -> Trial:
    """The one that all networks of a process share."""
    return Trial(device)


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
    """Tries sources for one device, in children that are started when first needed and then kept. Thread-safe."""

    def __init__(self, device: OpenclDevice, command: Sequence[str] | None = None) -> None:
        self._device = device
        # -P: modules beside the script must not hide those of the same names elsewhere.
        self._command = command or [sys.executable, "-P", str(_WORKER)]
        self._children: list[_Child] = []
        self._lock = ForkSafeLock()

    def run(self, candidates: Sequence[Candidate], options: Sequence[str], seconds: float) -> list[Tried]:
        """The results, in order, up to the first candidate that ended its child, or took longer than `seconds`.

        Raises `DeviceError` where no child can be started.
        """
        with self._lock:
            try:
                results = self._results(candidates, options, seconds)
            except BaseException:
                self._stop()
                raise
            if results and results[-1].crashed:
                # The other children are at candidates whose answers nobody waits for.
                self._stop()
            return results

    def _results(self, candidates: Sequence[Candidate], options: Sequence[str], seconds: float) -> list[Tried]:
        self._start(-(-len(candidates) // _SHARE))
        children = self._children[: len(candidates)]
        count = len(children)
        platform, device = self._device.position
        header = {"paths": sys.path, "platform": platform, "device": device, "options": list(options)}
        for number, child in enumerate(children):
            child.send({**header, "items": [_item(candidate) for candidate in candidates[number::count]]})
        results: list[Tried] = []
        for number, candidate in enumerate(candidates):
            results.append(self._result(children[number % count], candidate, seconds))
            if results[-1].crashed:
                break
        return results

    def _start(self, wanted: int) -> None:
        """Have some children, as many as are wanted where there are processors for them."""
        self._children = [child for child in self._children if child.is_alive]
        while len(self._children) < max(1, min(wanted, _MOST_CHILDREN)):
            self._children.append(_Child(self._command))

    def _stop(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.stop()

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
