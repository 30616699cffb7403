"""`Program`: the compiled model for one set of input shapes: segments in order over a table of values.

Nothing of it depends on a graph: a blob stores programs, and runs them where there is nothing that compiles.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from engine.errors import Cancelled, DeclarationError
from engine.limits import check_bytes
from engine.native import CancelFlag, Plan, PlanRunner

if TYPE_CHECKING:
    from engine_cpu.recording import PlanCalls
    from engine_cpu.segments.routine_draft import RoutineDraft

Value = Any
"""A numpy array, a list of values, a dict, or None for an empty optional."""
Array = np.ndarray[Any, np.dtype[Any]]


def in_order(data: Array) -> Array:
    """The data of a constant as plans and the evaluation read it: contiguous and aligned, a copy if need be.

    A constant may be anywhere in the file of the model. Plans would copy it for each run; for the evaluation, see
    `engine.ops.reference.constant_value`.
    """
    return np.require(data, requirements=["C", "A"])


class Inference(Protocol):
    """The context that one inference passes to its segments."""

    cancel: CancelFlag
    is_profiling: bool

    def check_cancelled(self) -> None:
        """Raise if the inference should stop."""

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
        """Record when a node ran."""


MakeOutput = Callable[[int, "tuple[int, ...]"], Array]
"""Returns the array for the output with a given index."""


class Segment(ABC):
    """Compiled nodes that run together; a program runs its segments in turn.

    Shared by requests, so immutable while it runs.
    """

    title = ""
    """The operator and the name of the node that computes its results, for messages; "" for several nodes."""
    why_not_stored = "a part of it is not planned before an inference"
    """Why a blob cannot have the program, as a clause; "" if it can."""

    @abstractmethod
    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        """Run; returns the outputs, of which those with a target are written there."""

    def output_shapes(self) -> Sequence[tuple[int, ...] | None]:
        """The shape of each output that supports a target."""
        return ()

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int] | None:
        """Add it to a routine; returns the values that it writes, or None if it does not run without Python."""
        return None

    @property
    def plans(self) -> list[Plan]:
        """The plans that it runs, as far as they exist before an inference."""
        return []


class PlacedSegment(NamedTuple):
    """A segment, and the slots of the values that it reads and writes."""

    segment: Segment
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(slots=True)
class ScheduledSegment:
    """A segment and the slots that it reads, writes, and is the last to read.

    `targets` is, for each output, the output of the program that it may be written to, or -1; `given` are the inputs
    that are not computed by plans.
    """

    segment: Segment
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    targets: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    given: tuple[GivenInput, ...]


class GivenInput(NamedTuple):
    """An input of a plan that an evaluation, a body or an operator of an extension computes.

    A plan compares bytes only, and what it was built for may be what a model or an extension states of the value.
    """

    place: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: str
    """What computes it."""

    def check(self, value: Value) -> None:
        """Raise `DeclarationError` if the value has another type or shape than the plan was built for."""
        if isinstance(value, np.ndarray) and value.shape == self.shape and value.dtype == self.dtype:
            return
        got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise DeclarationError(
            f"{self.source} gives {got}, but its declared type is {self.dtype}{list(self.shape)}; correct the type "
            "that the model's value_info, or the operator's extension, states"
        )


class Program:
    """The segments of a model for known input shapes. Shared by requests."""

    def __init__(
        self, num_inputs: int, outputs: Sequence[int], constants: Mapping[int, Array], segments: Sequence[PlacedSegment]
    ) -> None:
        """Schedule `segments` over slots, of which the first are the inputs; `constants` are the data of others."""
        self.num_inputs = num_inputs
        self.outputs = tuple(outputs)
        self.constants: dict[int, Array] = {slot: in_order(data) for slot, data in constants.items()}
        """The data of the constants that segments read, by slot."""
        slots = num_inputs + len(constants) + sum(len(each.writes) for each in segments)
        self._template: list[Value] = [self.constants.get(slot) for slot in range(slots)]
        self.segments = self._scheduled(segments)
        bound = {index for segment in self.segments for index in segment.targets if index >= 0}
        self.whole = self._only_plan()
        self.unbound_outputs = tuple((index, slot) for index, slot in enumerate(self.outputs) if index not in bound)

    def _only_plan(self) -> NativeSegment | None:
        """The plan, if there is only one, which reads the inputs and writes the outputs, each in order."""
        if len(self.segments) != 1 or self.segments[0].reads != tuple(range(self.num_inputs)):
            return None
        only = self.segments[0].segment
        is_in_order = self.segments[0].targets == tuple(range(len(self.outputs)))
        return only if is_in_order and isinstance(only, NativeSegment) else None

    def _scheduled(self, segments: Sequence[PlacedSegment]) -> list[ScheduledSegment]:
        first_output = {slot: index for index, slot in reversed(list(enumerate(self.outputs)))}
        kept = {*self.constants, *self.outputs}
        makers = {
            slot: segment.title or "a part that is not planned before an inference"
            for segment, _, written in segments
            if not isinstance(segment, NativeSegment)
            for slot in written
        }
        scheduled = []
        for segment, read, written in reversed(segments):
            frees = tuple({*read, *written} - kept)
            kept.update(frees)
            shapes = tuple(segment.output_shapes()) or (None,) * len(written)
            targets = tuple(
                first_output.get(slot, -1) if shape is not None else -1
                for slot, shape in zip(written, shapes, strict=True)
            )
            given: tuple[GivenInput, ...] = ()
            if makers and isinstance(segment, NativeSegment):
                given = tuple(
                    GivenInput(index, *segment.form.inputs[index], makers[slot])
                    for index, slot in enumerate(read)
                    if slot in makers
                )
            scheduled.append(ScheduledSegment(segment, read, written, frees, targets, shapes, given))
        return scheduled[::-1]

    @property
    def plans(self) -> list[Plan]:
        """The plans of its segments."""
        return [plan for scheduled in self.segments for plan in scheduled.segment.plans]

    def run(self, inputs: Sequence[Value], inference: Inference, make_output: MakeOutput | None = None) -> list[Value]:
        """Run; returns the outputs. With `make_output`, outputs that a plan computes are written to its arrays."""
        values = [*inputs, *self._template[self.num_inputs :]]
        for scheduled in self.segments:
            inference.check_cancelled()
            targets: list[Array | None]
            if make_output is None:
                targets = [None] * len(scheduled.writes)
            else:
                targets = [
                    None if index < 0 else make_output(index, shape)  # type: ignore[arg-type]
                    for index, shape in zip(scheduled.targets, scheduled.shapes, strict=True)
                ]
            read = [values[slot] for slot in scheduled.reads]
            for each in scheduled.given:
                each.check(read[each.place])
            results = scheduled.segment.run(read, targets, inference)
            for slot, value in zip(scheduled.writes, results, strict=True):
                values[slot] = value
            for slot in scheduled.frees:
                values[slot] = None
        return [values[slot] for slot in self.outputs]


@dataclass(frozen=True, slots=True)
class PlanForm:
    """A plan with what running it needs of the graph: the numpy type and the shape of each input and output, the
    friendly name and the operator of the node of each step, and the node of the largest value."""

    plan: Plan
    inputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    step_nodes: tuple[tuple[str, str], ...]
    largest: str


class NativeSegment(Segment):
    """A plan of native kernels. `calls` are those that build it, with which a blob stores it."""

    why_not_stored = ""

    def __init__(self, form: PlanForm, threads: int, streams: int, calls: PlanCalls | None = None) -> None:
        self.form = form
        self.calls = calls
        self._outputs = form.outputs
        self._runner = PlanRunner(form.plan, form.inputs, form.outputs, max_threads=threads, kept=streams)
        self._names = form.step_nodes
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in form.outputs]
        self._unchecked_bytes = form.plan.arena_bytes + sum(sizes)
        """What the first run allocates; 0 after it has been compared with the memory that is available."""
        self._largest = form.largest

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int]:
        """See `Segment`."""
        draft.step_nodes.append(self._names)
        return draft.builder.add_plan(self.form.plan, reads)

    @property
    def plans(self) -> list[Plan]:
        """Its plan."""
        return [self.form.plan]

    def output_shapes(self) -> list[tuple[int, ...]]:
        """All outputs of a plan support a target."""
        return [shape for _, shape in self._outputs]

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        """See `Segment`."""
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
            inference.check_cancelled()  # raises the reason for which the inference was stopped
            raise
        return outputs

    def bind(self, index: Mapping[Any, int], current: list[Value], given: object) -> list[Value] | None:
        """See `PlanRunner.bind`."""
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
