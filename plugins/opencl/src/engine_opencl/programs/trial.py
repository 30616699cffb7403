"""`Trial`: the first compilation and the first run of a kernel, in a child process.

A driver's compiler may crash its process, which is then only the child.
"""

from __future__ import annotations

import base64
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import DeviceError
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass
from engine_opencl.children.child import COMMAND, Child
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.plan import Launch

_MAX_CHILDREN: Final = min(os.cpu_count() or 1, 8)
"""The maximum number of children; each holds a driver's compiler in memory, some hundred MB."""
_SHARE: Final = 4
"""The number of kernels whose compilation takes as long as starting another child."""


@functools.cache
def trial_of(device: OpenclDevice) -> Trial:
    """The trial of a device, shared by all networks of a process."""
    return Trial(device)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source to try, with the kernels to run, and the sizes of their arguments: bytes, or a number.

    Attributes:
        binary: a binary compiled by another process, tried instead if it is not empty.
    """

    key: str
    source: str
    launches: tuple[Launch, ...]
    sizes: tuple[tuple[int | np.generic, ...], ...]
    binary: bytes = b""

    @property
    def kernels(self) -> str:
        """The names of the kernels, for messages."""
        return ", ".join(f"`{launch.kernel}`" for launch in self.launches)


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a candidate: its binary, or why it cannot be compiled, or how the process ended."""

    candidate: Candidate
    binary: bytes = b""
    failed: str = ""
    crashed: str = ""
    refused: str = ""
    note: str = ""


class Trial:
    """Tries sources for one device, in children that are started on first use and reused. Thread-safe."""

    def __init__(self, device: OpenclDevice, command: Sequence[str] | None = None) -> None:
        self._device = device
        self._command = command or COMMAND
        self._children: list[Child] = []
        self._lock = ForkSafeLock()

    def run(self, candidates: Sequence[Candidate], options: Sequence[str], seconds: float) -> list[Tried]:
        """The results, in order, up to the first candidate that ended its child, or took longer than `seconds`.

        Raises `DeviceError` if no child can be started.
        """
        with self._lock:
            try:
                results = self._results(candidates, options, seconds)
            except BaseException:
                self._stop()
                raise
            if results and results[-1].crashed:
                # The other children work on candidates whose answers are no longer needed.
                self._stop()
            return results

    def _results(self, candidates: Sequence[Candidate], options: Sequence[str], seconds: float) -> list[Tried]:
        self._start(-(-sum(len(each.launches) for each in candidates) // _SHARE))
        children = self._children[: len(candidates)]
        count = len(children)
        platform, device = self._device.position
        header = {"paths": sys.path, "platform": platform, "device": device, "options": list(options)}
        for number, child in enumerate(children):
            child.send({**header, "items": [_item(candidate) for candidate in candidates[number::count]]})
        results: list[Tried] = []
        for number, candidate in enumerate(candidates):
            results.append(self._result(children[number % count], candidate, seconds * len(candidate.launches)))
            if results[-1].crashed:
                break
        return results

    def _start(self, wanted: int) -> None:
        """Start up to the requested number of children, limited by the processors."""
        self._children = [child for child in self._children if child.is_alive]
        while len(self._children) < max(1, min(wanted, _MAX_CHILDREN)):
            self._children.append(Child(self._command))

    def _stop(self) -> None:
        children, self._children = self._children, []
        for child in children:
            child.stop()

    def _result(self, child: Child, candidate: Candidate, seconds: float) -> Tried:
        begun, answer = child.receive(seconds), None
        if begun is not None:
            answer = child.receive(seconds)
        if answer is None:
            how = child.how_it_ended(seconds)
            if begun is None and child.is_first_answer:
                raise DeviceError(
                    f"OPENCL: the child process that tries kernels for {self._device.facts.name} {how}; set "
                    "KERNEL_TRIAL_SECONDS to 0 to compile in this process"
                )
            return Tried(candidate, crashed=f"{how} (KERNEL_TRIAL_SECONDS sets this limit)" if child.is_alive else how)
        binary = base64.b64decode(answer.get("done", ""))
        return Tried(
            candidate,
            binary,
            answer.get("failed", ""),
            refused=answer.get("refused", ""),
            note=answer.get("note", ""),
        )


def _item(candidate: Candidate) -> dict[str, Any]:
    launches = [
        {
            "kernel": launch.entry,
            "arguments": [["buffer", s] if isinstance(s, int) else [s.dtype.name, s.item()] for s in sizes],
            "global": launch.global_size,
            "local": launch.local_size,
        }
        for launch, sizes in zip(candidate.launches, candidate.sizes, strict=True)
    ]
    binary = base64.b64encode(candidate.binary).decode()
    return {"key": candidate.key, "source": candidate.source, "binary": binary, "launches": launches}
