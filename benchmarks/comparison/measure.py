"""Measures one model in all engines: loading, results, latency or throughput in alternating blocks, memory."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from comparison.engines import Setup
from comparison.forms import in_form
from comparison.worker import Worker, WorkerError
from engine.testing.networks import SeededNetwork, floating_point_operations, rounding_tolerance

OURS, OURS_IN_F32 = "engine", "engine in f32"
"""This engine, and with a form, this engine on the f32 model beside it."""

REDUCED_TOLERANCE = 0.1
"""The share of the output's standard deviation that a deep network may lose with 8 bits, of bfloat16 or of integers."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """How to measure."""

    engines: Sequence[str]
    setup: Setup
    rounds: int = 5
    block_seconds: float = 0.4
    rest_seconds: float = 0.3
    loads: int = 3
    clock: str = "wall"
    """Either "wall", or "cpu", the CPU time of the process."""
    form: str = ""
    """One of `comparison.forms.FORMS`; empty: models as they are."""
    is_sweep: bool = False
    """Times by type of operator instead of loading times."""


@dataclass(slots=True)
class EngineResult:
    """The results of one engine for one model; a figure that could not be measured is None, and `problem` says why."""

    version: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    milliseconds: float | None = None
    """The median of the medians of the blocks."""
    rounds: list[float] = field(default_factory=list)
    """The median of each block, in milliseconds."""
    fastest_milliseconds: float | None = None
    rate: float | None = None
    """Inferences per second, with streams."""
    load_seconds: float | None = None
    """The median over fresh processes, from the ONNX file until ready to run."""
    import_seconds: float | None = None
    """The same from the engine's own compiled file."""
    first_seconds: float | None = None
    """The first inference."""
    peak_megabytes: float | None = None
    """The peak memory of the whole process, including imports."""
    model_megabytes: float | None = None
    """The same minus the peak when the engine was imported."""
    error: float | None = None
    """The deviation from the first engine with a result, relative to the outputs' scale."""
    agrees: bool | None = None
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by type of operator."""
    problem: str = ""


@dataclass(slots=True)
class ModelResult:
    """The results for one model."""

    name: str
    operations: int
    tolerance: float
    engines: dict[str, EngineResult]

    def as_json(self) -> dict[str, Any]:
        """The results as data for the JSON file."""
        return asdict(self)


def measure_model(name: str, network: SeededNetwork, procedure: Procedure) -> ModelResult:
    """Measure one model; an engine that cannot run it is skipped, and its result says why."""
    streams, precision = procedure.setup.streams, procedure.setup.precision
    is_exact = precision == "f32" and not procedure.form
    tolerance = rounding_tolerance(network.model) if is_exact else REDUCED_TOLERANCE
    operations = floating_point_operations(network.model)
    engines = [*procedure.engines, *([OURS_IN_F32] if procedure.form and OURS in procedure.engines else [])]
    results = {engine: EngineResult() for engine in engines}
    found = ModelResult(name, operations, tolerance, results)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = ModelFiles(Path(folder), network, procedure.form)
        workers = {engine: stack.enter_context(_worker(engine, procedure)) for engine in engines}
        for engine in engines:
            with problems_of(results[engine], workers, engine):
                load_model(workers[engine], results[engine], workers[engine].start(), files.model(engine), files.inputs)
        check_answers(workers, results, files, "f32" if is_exact else "bf16", tolerance)
        if streams:
            _measure_rates(workers, results, procedure)
        else:
            measure_latencies(workers, results, procedure, procedure.rounds, procedure.block_seconds)
        for engine, worker in list(workers.items()):
            with problems_of(results[engine], workers, engine):
                results[engine].peak_megabytes = worker.call("memory").get("peak")
                if procedure.is_sweep:
                    results[engine].kinds = worker.call("kinds", path=files.model(engine))["kinds"]
                else:
                    _export(engine, worker, files)
        if not streams and not procedure.is_sweep:
            stack.pop_all().close()  # nothing else may run while loading is timed
            _measure_loads(workers, results, files, procedure)
    for result in results.values():
        if result.peak_megabytes is not None and result.model_megabytes is not None:
            result.model_megabytes = result.peak_megabytes - result.model_megabytes
    return found


class ModelFiles:
    """The files of one model in one folder: the model, its inputs, and the engines' outputs."""

    def __init__(self, folder: Path, network: SeededNetwork, form: str) -> None:
        self.folder = folder
        self._model, self._f32 = str(folder / "model.onnx"), str(folder / "f32.onnx")
        self.inputs = str(folder / "inputs.npz")
        if form:
            onnx.save(network.model, self._f32)
            network = in_form(network, form)
        onnx.save(network.model, self._model)
        np.savez(self.inputs, **network.inputs)

    def model(self, engine: str) -> str:
        return self._f32 if engine == OURS_IN_F32 else self._model

    def answer(self, engine: str) -> str:
        return str(self.folder / f"{engine}.npz")

    def compiled(self, engine: str) -> Path:
        return self.folder / f"{engine}.blob"


@contextlib.contextmanager
def problems_of(result: EngineResult, workers: dict[str, Worker], engine: str) -> Any:
    """Exclude an engine that fails from the comparison, with its error."""
    try:
        yield
    except WorkerError as e:
        result.problem = str(e)
        workers.pop(engine).__exit__()


def _worker(engine: str, procedure: Procedure) -> Worker:
    return Worker(OURS if engine == OURS_IN_F32 else engine, procedure.setup)


def load_model(worker: Worker, result: EngineResult, started: Mapping[str, Any], model: str, inputs: str) -> None:
    """Load a model in a worker; `started` is its answer to `start`."""
    result.version, result.configuration = started["version"], started["configuration"]
    result.model_megabytes = started.get("peak")
    result.load_seconds = worker.call("load", path=model)["seconds"]
    result.first_seconds = worker.call("bind", inputs=inputs)["seconds"]


def check_answers(
    workers: dict[str, Worker], results: Mapping[str, EngineResult], files: ModelFiles, precision: str, tolerance: float
) -> None:
    """Compare all results with the first peer's, or this engine's if no peer has results."""
    answers: dict[str, list[np.ndarray]] = {}
    for engine, worker in list(workers.items()):
        with problems_of(results[engine], workers, engine):
            worker.call("answer", path=files.answer(engine))
            with np.load(files.answer(engine)) as arrays:
                answers[engine] = [arrays[key] for key in sorted(arrays)]
    expected = next((answers[engine] for engine in ("onnxruntime", "openvino", OURS) if engine in answers), [])
    for engine, answer in answers.items():
        result = results[engine]
        result.error = max(deviation(a, e, precision) for a, e in zip(answer, expected, strict=True))
        if engine == OURS_IN_F32:  # its error shows how much the form of the model loses
            continue
        result.agrees = result.error <= tolerance
        if not result.agrees:
            result.problem = f"deviates by {result.error:.1e} of the outputs' scale; expected at most {tolerance:.1e}"


def deviation(answer: np.ndarray, expected: np.ndarray, precision: str) -> float:
    """The error of a result relative to the expected scale: the maximum for f32, the root mean square for bf16."""
    if answer.shape != expected.shape or not np.isfinite(answer).all():
        return math.inf
    difference = np.asarray(answer, np.float64) - expected
    if precision == "bf16":
        return float(np.sqrt(np.mean(difference**2)) / np.std(expected))
    return float(np.abs(difference).max() / np.abs(expected).max())


def measure_latencies(
    workers: dict[str, Worker], results: Mapping[str, EngineResult], procedure: Procedure, rounds: int, seconds: float
) -> None:
    """Run blocks of inferences of each engine in turn, each after a rest, with another order in every round."""
    medians: dict[str, list[float]] = {engine: [] for engine in workers}
    fastest: dict[str, float] = {}
    for turn in range(rounds):
        for engine in _rotated(list(workers), turn):
            with problems_of(results[engine], workers, engine):
                time.sleep(procedure.rest_seconds)
                block = {"seconds": seconds, "warm_up": 2, "clock": procedure.clock}
                times = workers[engine].call("latency", **block)["seconds"]
                medians[engine].append(statistics.median(times))
                fastest[engine] = min(fastest.get(engine, math.inf), *times)
    for engine in workers:
        results[engine].rounds = [median * 1e3 for median in medians[engine]]
        results[engine].milliseconds = statistics.median(results[engine].rounds)
        results[engine].fastest_milliseconds = fastest[engine] * 1e3


def _measure_rates(workers: dict[str, Worker], results: Mapping[str, EngineResult], procedure: Procedure) -> None:
    rates: dict[str, list[float]] = {engine: [] for engine in workers}
    for turn in range(procedure.rounds):
        for engine in _rotated(list(workers), turn):
            with problems_of(results[engine], workers, engine):
                time.sleep(procedure.rest_seconds)
                rates[engine].append(workers[engine].call("throughput", seconds=2 * procedure.block_seconds)["rate"])
    for engine in workers:
        results[engine].rate = statistics.median(rates[engine])


def _rotated(engines: list[str], turn: int) -> list[str]:
    first = turn % max(len(engines), 1)
    return engines[first:] + engines[:first]


def _export(engine: str, worker: Worker, files: ModelFiles) -> None:
    """Save the compiled network of an engine that supports this."""
    with contextlib.suppress(WorkerError):
        worker.call("export", path=str(files.compiled(engine)))


def _measure_loads(
    workers: dict[str, Worker], results: Mapping[str, EngineResult], files: ModelFiles, procedure: Procedure
) -> None:
    """Load and import, each time in a fresh process, until there are `loads` figures of each."""
    loads: dict[str, list[float]] = {engine: [] for engine in workers}
    imports: dict[str, list[float]] = {engine: [] for engine in workers}
    for _ in range(procedure.loads):
        for engine in list(workers):
            with problems_of(results[engine], workers, engine):
                loads[engine].append(_fresh(engine, procedure, "load", files.model(engine)))
                if files.compiled(engine).exists():
                    imports[engine].append(_fresh(engine, procedure, "import_network", str(files.compiled(engine))))
    for engine in workers:
        if loads[engine]:
            results[engine].load_seconds = statistics.median(loads[engine])
        if imports[engine]:
            results[engine].import_seconds = statistics.median(imports[engine])


def _fresh(engine: str, procedure: Procedure, command: str, path: str) -> float:
    time.sleep(procedure.rest_seconds)
    with _worker(engine, procedure) as worker:
        worker.start()
        return float(worker.call(command, path=path)["seconds"])
