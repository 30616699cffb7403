"""Measures many models one after the other in the same processes, since starting one takes longer than a model."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, Self

from comparison.measure import (
    OURS,
    REDUCED_TOLERANCE,
    EngineResult,
    ModelFiles,
    ModelResult,
    Procedure,
    check_answers,
    load_model,
    measure_latencies,
    problems_of,
)
from comparison.worker import Worker, WorkerError
from engine.testing.networks import SeededNetwork, floating_point_operations


class Session:
    """A context manager with a process of each engine; one that failed is started again for the next model."""

    def __init__(self, procedure: Procedure) -> None:
        self._procedure = procedure
        self._workers: dict[str, Worker] = {}
        self._started: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.__exit__()
        self._workers.clear()

    def measure(
        self, name: str, network: SeededNetwork, tolerance: float, rounds: int, block_seconds: float, *, by_type: bool
    ) -> ModelResult:
        """Load a model in each engine, compare the outputs, and time alternating blocks.

        Args:
            tolerance: of f32 results, relative to their scale.
            by_type: whether to measure this engine's times by type of operator, too.
        """
        results = {engine: EngineResult() for engine in self._procedure.engines}
        is_exact = self._procedure.setup.precision == "f32" and not self._procedure.form
        allowed = tolerance if is_exact else REDUCED_TOLERANCE
        found = ModelResult(name, floating_point_operations(network.model), allowed, results)
        with tempfile.TemporaryDirectory() as folder:
            try:
                files = ModelFiles(Path(folder), network, self._procedure.form)
            except Exception as e:  # any failure of a tool that converts models
                for result in results.values():
                    result.problem = f"not converted: {type(e).__name__}: {' '.join(str(e).split())[:200]}"
                return found
            for engine, result in results.items():
                self._start(engine)
                with problems_of(result, self._workers, engine):
                    load_model(self._workers[engine], result, self._started[engine], files.model(engine), files.inputs)
            check_answers(self._workers, results, files, "f32" if is_exact else "bf16", allowed)
            measure_latencies(self._workers, results, self._procedure, rounds, block_seconds)
            if by_type and OURS in self._workers:
                with contextlib.suppress(WorkerError):
                    results[OURS].kinds = self._workers[OURS].call("kinds", path=files.model(OURS))["kinds"]
        return found

    def _start(self, engine: str) -> None:
        if engine in self._workers:
            return
        worker = Worker(engine, self._procedure.setup).__enter__()
        try:
            self._started[engine] = worker.start()
        except BaseException:
            worker.__exit__()
            raise
        self._workers[engine] = worker
