"""Measuring in blocks: one subject in this process, or several in processes of their own, alternating.

If the machine slows down for a while, all subjects are affected: blocks alternate, each round in another order, each
block after a rest in which clocks and caches of the one before it have no effect.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.cli.benchmark.statistics import Verdict, judge
from engine.cli.benchmark.subject import Subject
from engine.cli.benchmark.worker import Worker
from engine.errors import InputError
from engine.runtime.benchmark import Measurement, Meter
from engine.startup import dataclass
from engine.values.files import write_values

Progress: TypeAlias = Callable[[str, float], None]
"""Receives the name of the current step, and the share of it that is done, from 0 to 1."""
_BLOCK_SECONDS = 0.5
_BLOCKS = 10
_WARM_SECONDS = 0.1


@dataclass(slots=True)
class Series:
    """The blocks of one subject.

    Attributes:
        requests: inferences in flight; 0: one after the other in the calling thread.
        is_interrupted: whether Ctrl-C ended it early.
    """

    requests: int
    blocks: list[Measurement] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def all(self) -> Measurement:
        """The blocks joined to one measurement."""
        latencies = [block.latencies_ns for block in self.blocks]
        return Measurement(self.requests, sum(block.seconds for block in self.blocks), np.concatenate(latencies))

    @property
    def block_milliseconds(self) -> list[float]:
        """For each block, the median latency or, with requests in flight, the time divided by the inferences."""
        if not self.requests:
            return [block.latency(50) for block in self.blocks]
        return [block.seconds * 1e3 / block.count for block in self.blocks]


def measure_alone(meter: Meter, requests: int, seconds: float | None, count: int | None, progress: Progress) -> Series:
    """Measure in blocks until `seconds` have been measured or `count` inferences have been; at least one.

    Ctrl-C ends it early, with the blocks until then; before the end of the first one, `KeyboardInterrupt` is raised.
    """
    series = Series(requests)
    step = None if count is None else max(1, -(-count // _BLOCKS), requests)
    length = None if seconds is None else min(_BLOCK_SECONDS, seconds / _BLOCKS)
    measured, done = 0.0, 0
    try:
        while not series.blocks or not (
            (seconds is not None and measured >= seconds) or (count is not None and done >= count)
        ):
            left = None if count is None or step is None else min(step, count - done)
            span = None if seconds is None or length is None else max(0.0, min(length, seconds - measured))
            block = meter.measure(seconds=span, count=left)
            series.blocks.append(block)
            measured, done = measured + block.seconds, done + block.count
            shares = [measured / seconds if seconds else 1.0 if seconds == 0 else 0.0, done / count if count else 0.0]
            progress("measure", min(1.0, max(shares)))
    except KeyboardInterrupt:
        if not series.blocks:
            raise
        series.is_interrupted = True
    return series


@dataclass(frozen=True, slots=True)
class Procedure:
    """How subjects are compared: blocks of `block_seconds` or `block_count` inferences, whichever ends first.

    With `is_fresh`, each block has a new process. Differences between processes, such as kernels that are chosen by
    measurement, and where memory lies, are then part of the noise that the verdict takes into account.
    """

    rounds: int = 9
    block_seconds: float | None = 0.5
    block_count: int | None = None
    rest_seconds: float = 0.2
    warm_up: int = 1
    requests: int = 0
    cores: tuple[int, ...] = ()
    is_fresh: bool = True


@dataclass(slots=True)
class Compared:
    """One subject of a comparison.

    Attributes:
        about: versions, configuration, times to read, compile and run first.
        difference: the largest difference of its outputs from the base's, relative to the largest magnitude there;
            infinite if a number is infinite or NaN in only one of them, None if they cannot be compared.
        verdict: relative to the base; None for the base.
    """

    subject: Subject
    about: dict[str, Any]
    series: Series
    difference: float | None = None
    verdict: Verdict | None = None
    peak_bytes: int | None = None


def compare_subjects(
    subjects: Sequence[Subject], inputs: Mapping[str, Any], procedure: Procedure, progress: Progress
) -> list[Compared]:
    """Measure subjects in alternating blocks of one run; the first is the base, on whose inputs all run.

    Ctrl-C ends it early, with the rounds until then; before the end of the first one, `KeyboardInterrupt` is raised.
    Raises `InputError` for a subject with other inputs, and `WorkerError` with the error of one that fails.
    """
    found = [Compared(subject, {}, Series(procedure.requests)) for subject in subjects]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        processes = _Processes(Path(folder), inputs, procedure, stack)
        _run_rounds(found, processes, procedure, progress)
        for index, each in enumerate(found):
            each.difference = _difference(processes.answer(0), processes.answer(index))
    times = [each.series.block_milliseconds for each in found]
    for each, own in list(zip(found, times, strict=True))[1:]:
        each.verdict = judge(times[0], own)
    return found


def _run_rounds(found: Sequence[Compared], processes: _Processes, procedure: Procedure, progress: Progress) -> None:
    blocks = len(found) * procedure.rounds
    done = 0
    try:
        for turn in range(procedure.rounds):
            measured: dict[int, Measurement] = {}
            for index in _rotated(len(found), turn):
                progress(f"round {turn + 1}: {found[index].subject.label}", done / blocks)
                measured[index] = processes.block(index, found[index])
                done += 1
            for index, measurement in measured.items():
                found[index].series.blocks.append(measurement)
    except KeyboardInterrupt:
        if not found[0].series.blocks:
            raise
        for each in found:
            each.series.is_interrupted = True


class _Processes:
    """The processes of subjects: a new one for each block, or one each for all blocks."""

    def __init__(self, folder: Path, inputs: Mapping[str, Any], procedure: Procedure, stack: ExitStack) -> None:
        self._folder, self._procedure, self._stack = folder, procedure, stack
        self._names = list(inputs)
        self._kept: dict[int, Worker] = {}
        write_values(folder / "inputs.npz", inputs, {}, "input")

    def answer(self, index: int) -> Path:
        """The file of a subject's outputs."""
        return self._folder / f"{index}.npz"

    def block(self, index: int, compared: Compared) -> Measurement:
        """Measure a block of one subject after a rest; record what is known about it."""
        if not self._procedure.is_fresh:
            worker = self._kept.get(index)
            if worker is None:
                worker = self._kept[index] = self._stack.enter_context(Worker(compared.subject.label))
                self._open(index, worker, compared)
            return self._measured(worker, compared)
        with Worker(compared.subject.label) as worker:
            self._open(index, worker, compared)
            return self._measured(worker, compared)

    def _open(self, index: int, worker: Worker, compared: Compared) -> None:
        subject, procedure = compared.subject, self._procedure
        about = worker.call("open", subject=subject.as_json(), cores=list(procedure.cores))
        if set(about["inputs"]) != set(self._names):
            raise InputError(
                f"{subject.label}: {subject.file} has the inputs {', '.join(about['inputs']) or 'none'}; "
                f"expected the base's: {', '.join(self._names) or 'none'}"
            )
        bound = {"requests": procedure.requests, "warm_up": procedure.warm_up}
        files = {"inputs": str(self._folder / "inputs.npz"), "outputs": str(self.answer(index))}
        about |= worker.call("bind", **files, **bound)
        # Not measured: threads start, pages are touched, and the clock rises.
        worker.call("block", seconds=_WARM_SECONDS, count=procedure.block_count)
        compared.about = compared.about or about

    def _measured(self, worker: Worker, compared: Compared) -> Measurement:
        procedure = self._procedure
        time.sleep(procedure.rest_seconds)
        block = worker.call("block", seconds=procedure.block_seconds, count=procedure.block_count)
        peak = worker.call("memory")["peak_bytes"]
        compared.peak_bytes = None if peak is None else max(peak, compared.peak_bytes or 0)
        return Measurement(procedure.requests, block["seconds"], np.array(block["latencies_ns"], np.int64))


def _rotated(count: int, turn: int) -> list[int]:
    """Each round begins with another subject, and every second pair of rounds runs backwards."""
    order = [(turn + index) % count for index in range(count)]
    return order if turn % 4 < 2 else order[::-1]


def _difference(base: Path, other: Path) -> float | None:
    """The largest difference of arrays relative to the largest magnitude of the base; None if they do not match."""
    with np.load(base) as a, np.load(other) as b:
        if not len(a.files) or a.files != b.files:
            return None
        pairs = [(a[name], b[name]) for name in a.files]
    if any(x.shape != y.shape or x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub" for x, y in pairs):
        return None
    return max((_relative(x.astype(np.float64), y.astype(np.float64)) for x, y in pairs if x.size), default=0.0)


def _relative(x: Any, y: Any) -> float:
    """NaN and infinities are equal to themselves, and infinitely far from anything else."""
    differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    if not differs.any():
        return 0.0
    if not (np.isfinite(x[differs]) & np.isfinite(y[differs])).all():
        return float("inf")
    scale = float(np.abs(x[np.isfinite(x)]).max()) or 1.0
    return float(np.abs(x - y, where=differs, out=np.zeros(x.shape)).max()) / scale
