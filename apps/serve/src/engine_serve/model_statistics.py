"""`ModelStatistics`: how many requests a model has answered, and what took how long: Triton's statistics extension."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from engine_serve.request_queue import Times

Runs = Mapping[int, tuple[int, int]]
"""By the rows of a batch: how many batches have run, and their nanoseconds."""


class ModelStatistics:
    """The requests to one version of a model since it was loaded. Used by one event loop.

    The durations are those of `engine_serve.metrics`: those of answered requests and of failed ones are together the
    sum of the histogram `engine_request_seconds`.
    """

    __slots__ = ("_ended", "_failed", "_failed_ns", "_further_runs", "_infer_ns", "_queue_ns", "_succeeded")

    def __init__(self) -> None:
        self._succeeded = self._failed = self._further_runs = 0
        self._failed_ns = self._queue_ns = self._infer_ns = 0
        self._ended = 0.0

    def add(self, is_answered: bool, times: Times) -> None:
        """Count a request that has ended. Without a time when it began, all its time counts as that of inferences."""
        if not is_answered:
            self._failed += 1
            self._failed_ns += int((times.ended - times.arrived) * 1e9)
            return
        self._succeeded += 1
        self._ended = times.ended
        began = times.began or times.arrived
        self._queue_ns += int((began - times.arrived) * 1e9)
        self._infer_ns += int((times.ended - began) * 1e9)

    def add_runs(self, count: int) -> None:
        """Count inferences of a request beyond its first one."""
        self._further_runs += count

    def described(self, name: str, version: str, runs: Runs | None) -> dict[str, Any]:
        """The statistics as the extension has them: counts, and durations in nanoseconds.

        Args:
            runs: the batches of a network that makes them. Otherwise, each answered request was an inference.
        """
        count = self._succeeded
        if runs is None:
            inferences = count
            runs = {1: (count + self._further_runs, self._infer_ns)} if count else {}
        else:
            inferences = sum(rows * times for rows, (times, _) in runs.items())
        last = 0 if not count else int((time.time() - (time.perf_counter() - self._ended)) * 1000)
        return {
            "name": name,
            "version": version,
            "last_inference": last,
            "inference_count": inferences,
            "execution_count": sum(times for times, _ in runs.values()),
            "inference_stats": {
                "success": _duration(count, self._queue_ns + self._infer_ns),
                "fail": _duration(self._failed, self._failed_ns),
                "queue": _duration(count, self._queue_ns),
                "compute_input": _duration(count, 0),
                "compute_infer": _duration(count, self._infer_ns),
                "compute_output": _duration(count, 0),
                "cache_hit": _duration(0, 0),
                "cache_miss": _duration(0, 0),
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _duration(times, 0),
                    "compute_infer": _duration(times, nanoseconds),
                    "compute_output": _duration(times, 0),
                }
                for rows, (times, nanoseconds) in sorted(runs.items())
            ],
        }


def _duration(count: int, nanoseconds: int) -> dict[str, int]:
    return {"count": count, "ns": nanoseconds}
