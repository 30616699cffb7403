"""A process that runs one engine and executes commands: one JSON object per line in, one per line out.

Between two commands, the process is blocked on a read; only threads that the engine keeps running can use CPU time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from comparison.engines import ENGINES, Engine, Setup, latencies, process_memory


class WorkerError(Exception):
    """A command failed; the message is the engine's error."""


class Worker:
    """The caller's side: a context manager that starts the process and sends commands.

    `paths` are searched for packages before those that are installed.
    """

    def __init__(self, engine: str, setup: Setup, paths: Sequence[Path] = ()) -> None:
        self._engine = engine
        self._setup = setup
        self._paths = paths

    def __enter__(self) -> Worker:
        """Start the process; it imports its engine at the first call."""
        folder = str(Path(__file__).resolve().parent.parent)
        paths = [folder, *map(str, self._paths), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "comparison.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
            # Otherwise, packages in the current folder would come before `paths`.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process and its children, which may keep its pipes open (openvino's telemetry)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def start(self) -> dict[str, Any]:
        """Import the engine; return its version, its configuration, and the memory of the process afterwards."""
        fields = ("threads", "precision", "streams", "device", "effort")
        return self.call("start", engine=self._engine, **{name: getattr(self._setup, name) for name in fields})

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Execute a command; raise WorkerError with the engine's error, or if the process dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self._engine}: the process died during `{command}` (status {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self._engine}: {answer['error']}")
        return answer


class _Commands:
    """The commands of a worker, one for each method."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._inputs: dict[str, np.ndarray] = {}

    def start(self, engine: str, **setup: Any) -> dict[str, Any]:
        self._engine = ENGINES[engine](Setup(**setup))
        about = {"version": self._engine.version, "configuration": self._engine.configuration}
        return {**about, "location": self._engine.location, **process_memory()}

    def load(self, path: str) -> dict[str, Any]:
        return self._timed(lambda: self._loaded.load(path))

    def import_network(self, path: str) -> dict[str, Any]:
        return self._timed(lambda: self._loaded.import_network(path))

    def export(self, path: str) -> dict[str, Any]:
        return self._timed(lambda: self._loaded.export(path))

    def bind(self, inputs: str) -> dict[str, Any]:
        """Read the inputs, and run once."""
        with np.load(inputs) as arrays:
            self._inputs = dict(arrays)
        self._call = self._loaded.runner(self._inputs)
        return self._timed(self._call)

    def answer(self, path: str) -> dict[str, Any]:
        arrays = self._loaded.outputs(self._call())
        np.savez(path, **{f"output{index:03}": np.asarray(value) for index, value in enumerate(arrays)})
        return {}

    def latency(self, seconds: float, warm_up: int, clock: str) -> dict[str, Any]:
        return {"seconds": latencies(self._call, seconds, warm_up, clock)}

    def throughput(self, seconds: float) -> dict[str, Any]:
        return {"rate": self._loaded.throughput(self._inputs, seconds)}

    def kinds(self, path: str) -> dict[str, Any]:
        return {"kinds": self._loaded.kinds(path, self._inputs)}

    def memory(self) -> dict[str, Any]:
        return dict(process_memory())

    @property
    def _loaded(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _timed(self, run: Any) -> dict[str, Any]:
        begin = time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - begin, **process_memory()}


def serve(commands: TextIO, answers: TextIO) -> None:
    """Execute commands until the input ends."""
    known = _Commands()
    for line in commands:
        request = json.loads(line)
        try:
            answer = getattr(known, request.pop("do"))(**request)
        except Exception as e:  # the report includes any failure of an engine
            answer = {"error": " ".join(f"{type(e).__name__}: {e}".split())[:400]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # Engines print to standard output, but the caller must read only answers.
    with open(os.dup(1), "w") as answers, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        serve(sys.stdin, answers)
