"""`BodyInference`: the profile of control flow that is driven from Python, one entry for each node of a body."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine_cpu.segments.routine_draft import StepNames
from engine_cpu.segments.segment import Inference


class BodyInference:
    """Passes on what an inference gives to segments, and adds the times of each node over all trips."""

    def __init__(self, outer: Inference) -> None:
        self._outer = outer
        self.cancel = outer.cancel
        self.is_profiling = outer.is_profiling
        self.times: dict[tuple[str, str, str], int] = {}

    def check_cancelled(self) -> None:
        """Raise the error of a cancellation of the inference that runs the node."""
        self._outer.check_cancelled()

    def record_node(
        self,
        name: str,
        op_type: str,
        status: str,
        start_ns: int,
        end_ns: int,
        *,
        kernel: str = "",
        live_bytes: int | None = None,
    ) -> None:
        """See `Inference`. Kernels and memory of single trips are not kept."""
        key = name, op_type, status
        self.times[key] = self.times.get(key, 0) + end_ns - start_ns


@contextmanager
def profiled_body(name: str, op_type: str, inference: Inference) -> Iterator[BodyInference]:
    """Record the nodes of bodies that run inside the block, and the rest of its time as the node's own."""
    inner = BodyInference(inference)
    start = time.perf_counter_ns()
    yield inner
    if not inference.is_profiling:
        return
    record_body(name, op_type, inference, start, inner.times)


def record_body(
    name: str, op_type: str, inference: Inference, start: int, times: dict[tuple[str, str, str], int]
) -> None:
    """Record the nodes of a body, one behind the other, and the node's own time from `start` to now."""
    own = max(0, time.perf_counter_ns() - start - sum(times.values()))
    statuses = [status for _, _, status in times]
    inference.record_node(name, op_type, "reference" if "reference" in statuses else "native", start, start + own)
    start += own
    for (node, node_type, status), duration in times.items():
        inference.record_node(f"{name}/{node}", node_type, status, start, start + duration)
        start += duration


def times_of(step_nodes: Sequence[StepNames], profile: Sequence[Sequence[int]]) -> dict[tuple[str, str, str], int]:
    """Sum the times of steps, in ns, over the nodes that they run: by name, operator and status."""
    times: dict[tuple[str, str, str], int] = {}
    for nodes, durations in zip(step_nodes, profile, strict=True):
        for (name, op_type), duration in zip(nodes, durations, strict=True):
            key = name, op_type, "native"
            times[key] = times.get(key, 0) + duration
    return times
