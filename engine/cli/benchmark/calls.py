"""Measuring functions that run an inference each, for engines that are not ours: as `Meter` measures a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.cli.peers.base import Call
from engine.runtime.benchmark import Measurement


class CallMeter:
    """Runs calls of the same inputs: one in this thread, or several in a thread each."""

    def __init__(
        self,
        calls: Sequence[Call],
        inputs: Mapping[str, Any],
        requests: int,
        warm_up: int,
    ) -> None:
        self._calls, self._inputs, self._requests = calls, inputs, requests
        for call in calls:
            for _ in range(warm_up):
                call(inputs)

    def measure(self, *, seconds: float | None = None, count: int | None = None) -> Measurement:
        """Run inferences until `seconds` have passed or `count` have been started, but at least one."""
        run = _Run(self._inputs, seconds, count)
        if not self._requests:
            run.work(self._calls[0])
        else:
            workers = [threading.Thread(target=run.work, args=(call,)) for call in self._calls]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if run.error is not None:
            raise run.error
        return Measurement(self._requests, (run.end - run.begin) / 1e9, np.array(run.latencies, np.int64))


class _Run:
    def __init__(self, inputs: Mapping[str, Any], seconds: float | None, count: int | None) -> None:
        self._inputs, self._seconds, self._count = inputs, seconds, count
        self._started = 0
        self._lock = threading.Lock()
        self.latencies: list[int] = []
        self.error: Exception | None = None
        self.begin = self.end = time.perf_counter_ns()

    def work(self, call: Call) -> None:
        """Run inferences until the limit is reached, or any thread has failed."""
        while self._may_start():
            start = time.perf_counter_ns()
            try:
                call(self._inputs)
            except Exception as e:
                self.error = e
                return
            self.end = end = time.perf_counter_ns()
            self.latencies.append(end - start)

    def _may_start(self) -> bool:
        with self._lock:
            passed = time.perf_counter_ns() - self.begin >= (self._seconds or 0.0) * 1e9
            is_over = (self._count is not None and self._started >= self._count) or (
                self._started > 0 and self._seconds is not None and passed
            )
            if is_over or self.error is not None:
                return False
            self._started += 1
            return True
