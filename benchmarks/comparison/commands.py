"""The commands that a process of the comparison executes: one JSON object per line in, one per line out.

It imports nothing of the engine before a command needs it: the engine may be an older revision of this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from comparison.engines import ENGINES, Engine, Setup, latencies, process_memory


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


def main() -> None:
    """Serve on standard input and output. Engines print to standard output, but the caller must read only answers."""
    with open(os.dup(1), "w") as answers, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        serve(sys.stdin, answers)
