"""`NativeSegment`: a plan of native kernels. Like `Segment`, it depends on no graph."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import Cancelled
from engine.limits import check_bytes
from engine.native import Plan, PlanRunner
from engine_cpu.segments.segment import Array, Inference, PlanForm, RunMemory, Segment, Value

if TYPE_CHECKING:
    from engine_cpu.recording import PlanCalls
    from engine_cpu.segments.routine_draft import RoutineDraft


class NativeSegment(Segment):
    """A plan of native kernels, with the outputs that it computes."""

    why_not_stored = ""
    form: PlanForm

    def __init__(self, form: PlanForm, threads: int, streams: int, calls: PlanCalls | None = None) -> None:
        self.form = form
        self.calls = calls
        self._threads, self._streams = threads, streams
        self._outputs = form.outputs
        self._runner = PlanRunner(form.plan, form.inputs, form.outputs, max_threads=threads, kept=streams)
        self._names = form.step_nodes
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in form.outputs]
        self._unchecked_bytes = form.plan.arena_bytes + sum(sizes)
        """The bytes that the first run allocates; 0 after they have been compared with the available memory."""
        self._largest = form.largest

    def with_own_memory(self) -> NativeSegment:
        """A segment with contexts of its own."""
        return NativeSegment(self.form, self._threads, self._streams, self.calls)

    def release(self) -> None:
        """Free the arrays that are kept for outputs."""
        self._runner.release()

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int]:
        draft.step_nodes.append(self._names)
        return draft.builder.add_plan(self.form.plan, reads)

    @property
    def plans(self) -> list[Plan]:
        """A list of the one plan that the segment runs."""
        return [self.form.plan]

    def memory(self) -> RunMemory:
        return RunMemory.of_plans(self.plans, self._threads)

    def output_shapes(self) -> list[tuple[int, ...]]:
        """All outputs of a plan support a target."""
        return [shape for _, shape in self._outputs]

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        if not inference.is_profiling and not any(target is not None for target in targets):
            return self.run_new(inputs, inference)
        self._check_memory()
        outputs = [
            target if target is not None else np.empty(shape, dtype)
            for target, (dtype, shape) in zip(targets, self._outputs, strict=True)
        ]
        try:
            if inference.is_profiling:
                self._run_profiled(inputs, outputs, inference)
            else:
                self._runner.fill(inputs, outputs, inference.cancel)
        except Cancelled:
            inference.check_cancelled()  # raises the error that stopped the inference
            raise
        return outputs

    def bind(self, index: Mapping[Any, int], current: list[Value], given: object) -> list[Value] | None:
        """Bind the arrays to the plan, as `PlanRunner.bind` does."""
        return self._runner.bind(index, current, given)

    def run_new(self, inputs: Sequence[Value], inference: Inference) -> list[Array]:
        """Run without a profile; returns new arrays."""
        if self._unchecked_bytes:
            self._check_memory()
        try:
            return self._runner.run(inputs, inference.cancel)
        except Cancelled:
            inference.check_cancelled()  # as in `run`
            raise

    def _check_memory(self) -> None:
        """Raise `OutOfMemoryError` before the first run if the memory that it needs is not available."""
        if self._unchecked_bytes:
            check_bytes(self._unchecked_bytes, f"{self._largest}, with all other values of its plan")
            self._unchecked_bytes = 0

    def _run_profiled(self, inputs: Sequence[Value], outputs: Sequence[Array], inference: Inference) -> None:
        start = time.perf_counter_ns()
        durations = self._runner.fill(inputs, outputs, inference.cancel, profile=True)
        assert durations is not None
        plan = self.form.plan
        for (name, op_type), step, live, duration in zip(
            self._names, plan.steps, plan.live_bytes, durations, strict=True
        ):
            end = start + duration
            inference.record_node(name, op_type, "native", start, end, kernel=step.kernel, live_bytes=live)
            start = end
