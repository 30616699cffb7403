"""Runs the cases of a generator in a worker process, which is replaced after a crash, a hang, or when it grew."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
STARTING_SECONDS = 120.0
# A new worker has no caches of the cases before it.
CASES_PER_WORKER = 2000
GROWN_MEBIBYTES = 2500


@dataclass(slots=True)
class Report:
    """The way in which a case ended."""

    seed: int
    outcome: str
    detail: str = ""
    is_finding: bool = False
    seconds: float = 0.0
    mebibytes: int = 0


@dataclass(slots=True)
class Summary:
    """The counts of a run, and its findings."""

    generator: str
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Report] = field(default_factory=list)
    peak_mebibytes: int = 0

    @property
    def cases(self) -> int:
        """How many cases have run."""
        return sum(self.outcomes.values())

    def add(self, report: Report) -> None:
        """Count a case."""
        self.outcomes[report.outcome] += 1
        self.peak_mebibytes = max(self.peak_mebibytes, report.mebibytes)
        if report.is_finding:
            self.findings.append(report)

    def __str__(self) -> str:
        lines = [
            f"{self.generator}: {self.cases} cases in {self.seconds:.0f} s, {len(self.findings)} findings, "
            f"at most {self.peak_mebibytes} MiB"
        ]
        return "\n".join(lines + [f"  {count:8} {outcome}" for outcome, count in self.outcomes.most_common()])


class Worker:
    """One worker process."""

    def __init__(self, generator: str, devices: str) -> None:
        self._answers, answers = os.pipe()
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._rest = b""
        notes = self._notes.fileno()
        command = [sys.executable, "-m", "tests.fuzz.worker", generator, "--answers", str(answers)]
        command += ["--notes", str(notes), "--devices", devices]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(answers, notes),
            start_new_session=True,
            # The native core and the BLAS of the reference share one core, and a case must not depend on the machine.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        )
        os.close(answers)
        self.cases = 0

    def run(self, seed: int, limit: float) -> Report:
        """Run one case; a crash or a hang is a finding, after which the worker is of no use."""
        assert self._process.stdin is not None
        start, seconds = time.monotonic(), limit + (STARTING_SECONDS if self.cases == 0 else 0.0)
        self.cases += 1
        try:
            self._process.stdin.write(f"{seed}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended(seed, "the process ended before the case")
        line = self._line(start + seconds)
        if line is None:
            is_hanging = time.monotonic() >= start + seconds
            return self._ended(seed, f"a hang of {seconds:.0f} s" if is_hanging else "a crash")
        read: dict[str, Any] = json.loads(line)
        return Report(**read)

    def close(self) -> None:
        """End the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._answers)
        self._notes.close()
        self._errors.close()

    def _line(self, end: float) -> bytes | None:
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 65536) if ready else b""
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _ended(self, seed: int, what: str) -> Report:
        if "hang" not in what:
            self._process.wait()
        if self._process.poll() is None:
            what_runs = what
            self._process.send_signal(signal.SIGABRT)  # faulthandler writes where each thread is
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        else:
            code = self._process.returncode
            what_runs = f"{what} by {signal.Signals(-code).name}" if code < 0 else f"{what}: exit status {code}"
        self._errors.seek(0)
        self._notes.seek(0)
        doing = self._notes.read().decode(errors="replace").strip()
        errors = self._errors.read().decode(errors="replace")
        return Report(seed, f"{what_runs} while {doing.partition(':')[0]}", f"{doing}\n{errors[-6000:]}", True)


def run_cases(
    generator: str,
    seeds: Iterable[int],
    *,
    limit: float,
    devices: str,
    seconds: float | None = None,
    is_kept: bool = False,
    on_case: Callable[[Report], object] = lambda report: None,
) -> Summary:
    """Run the cases of the seeds one after the other, for at most `seconds`; each has `limit` seconds.

    `is_kept` uses one worker for the whole run, however much it grows: for generators that look for leaks themselves.
    """
    summary, start = Summary(generator), time.monotonic()
    worker: Worker | None = None
    try:
        for seed in seeds:
            if seconds is not None and time.monotonic() - start > seconds:
                break
            worker = worker or Worker(generator, devices)
            report = worker.run(seed, limit)
            summary.add(report)
            summary.seconds = time.monotonic() - start
            on_case(report)
            is_dead = report.is_finding and report.mebibytes == 0
            has_grown = worker.cases >= CASES_PER_WORKER or report.mebibytes > GROWN_MEBIBYTES
            if is_dead or (has_grown and not is_kept):
                worker.close()
                worker = None
    finally:
        if worker is not None:
            worker.close()
    return summary
