"""A process that holds one subject and runs its blocks: one JSON object per line in, one per line out.

Between two commands it is blocked on a read, so only threads that its engine keeps spinning use the processor while
another subject is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np

from engine.cli.benchmark.machine import describe_versions, peak_memory
from engine.cli.benchmark.pinning import restrict_to_cores
from engine.cli.benchmark.subject import Subject, open_subject
from engine.errors import EngineError
from engine.runtime.benchmark import Meter
from engine.values.files import read_values, write_values

_CODE = "from engine.cli.benchmark.worker import main; main()"


class WorkerError(EngineError):
    """A subject could not be measured; the message is its engine's."""


class Worker:
    """The caller's side: a context manager that starts the process and sends commands.

    Args:
        label: names the process in errors.
        code: what it runs, which answers commands as `serve` does.
        paths: folders that it searches for packages before those that are installed.
    """

    def __init__(self, label: str, code: str = _CODE, paths: Sequence[Path] = ()) -> None:
        self._label, self._code, self._paths = label, code, paths

    def __enter__(self) -> Self:
        """Start the process. It is in a group of its own, so that Ctrl-C reaches only the caller."""
        home = Path(__file__).resolve().parents[3]
        paths = [*map(str, self._paths), *filter(None, [os.environ.get("PYTHONPATH")]), str(home)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
            # Otherwise, packages in the current folder would come before `paths`.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process and its children, which may hold its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Execute a command. Raises `WorkerError` with the engine's error, or if the process ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self._label}: the process ended during `{command}`, status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self._label}: {answer['error']}")
        return answer


class _Commands:
    """The commands of a worker, one for each method."""

    def open(self, subject: Mapping[str, Any], cores: list[int]) -> dict[str, Any]:
        """Load the subject, on these cores if there are any."""
        if cores:
            restrict_to_cores(cores)
        found = open_subject(Subject.from_json(subject))
        self._network = found.network
        return {
            "versions": describe_versions(found.network), "config": dict(found.network.config.explicit),
            "inputs": [port.name for port in found.network.inputs], "read_s": found.read_seconds,
            "compile_s": found.compile_seconds, "device": list(found.network.get_metric("EXECUTION_DEVICES")),
            "requests": found.network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS"), "name": found.network.name,
        }  # fmt: skip

    def bind(self, inputs: str, outputs: str, requests: int, warm_up: int) -> dict[str, Any]:
        """Read the inputs, run once, write the outputs that are arrays, and warm up."""
        types = {port.name: port.type for port in self._network.inputs}
        given = read_values(inputs, types, "input")
        start = time.perf_counter()
        results: Mapping[str, Any] = self._network(given)
        first = time.perf_counter() - start
        self._meter = Meter(self._network, given, requests=requests, warm_up=warm_up)
        arrays = {f"{i}": np.array(v) for i, v in enumerate(results.values()) if isinstance(v, np.ndarray)}
        write_values(outputs, arrays, {}, "output")
        return {"first_inference_s": first}

    def block(self, seconds: float | None, count: int | None) -> dict[str, Any]:
        """Run one block."""
        found = self._meter.measure(seconds=seconds, count=count)
        return {"seconds": found.seconds, "latencies_ns": found.latencies_ns.tolist()}

    def memory(self) -> dict[str, Any]:
        """The most memory that the process has had."""
        return {"peak_bytes": peak_memory()}


def serve(commands: TextIO, answers: TextIO) -> None:
    """Execute commands until the input ends."""
    known = _Commands()
    for line in commands:
        request = json.loads(line)
        try:
            answer = getattr(known, request.pop("do"))(**request)
        except Exception as e:  # the caller reports any failure of an engine, and the others may continue
            said = str(e) if isinstance(e, EngineError) else f"{type(e).__name__}: {e}"
            answer = {"error": " ".join(said.split())}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()


def main() -> None:
    """Serve on standard input and output. Engines print to standard output, but the caller must read only answers."""
    with open(os.dup(1), "w") as answers, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        serve(sys.stdin, answers)
