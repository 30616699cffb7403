"""`Program`: what runs for one set of input shapes. Parts in order over a table of values."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.errors import Cancelled
from engine.ir import Constant, Model, Output
from engine.native import CancelFlag, Context, Plan
from engine_cpu.segment import Segment

Value = Any
"""A numpy array, a list of values, a dict, or None for an empty optional."""
Array = np.ndarray[Any, np.dtype[Any]]


class Run(Protocol):
    """What one inference gives to the parts that it runs."""

    cancel: CancelFlag
    is_profiling: bool

    def check_cancelled(self) -> None:
        """Raise where the inference should stop."""

    def record_node(self, name: str, op_type: str, status: str, start_ns: int, end_ns: int) -> None:
        """Record when a node ran."""


MakeOutput = Callable[[int, "tuple[int, ...]"], Array]
"""Gives the array to write the output of an index into."""


class Part(ABC):
    """One of the things that a program runs in turn. Shared by requests, so never written while it runs."""

    @abstractmethod
    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], run: Run) -> Sequence[Value]:
        """The outputs; those with a target are written there."""

    def output_shapes(self) -> Sequence[tuple[int, ...] | None]:
        """The shape of each output that can be written to a target."""
        return ()


@dataclass(slots=True)
class ScheduledPart:
    """A part and the slots that it reads, writes, and is the last to read.

    `targets` is, for each output, the output of the program that it may be written to, or -1.
    """

    part: Part
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]
    targets: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]


class ContextPool:
    """Contexts of a plan, each used by one inference at a time and kept for the next one."""

    __slots__ = ("_idle", "_keep", "plan", "threads")

    def __init__(self, plan: Plan, threads: int, keep: int) -> None:
        self.plan = plan
        self.threads = threads
        self._keep = keep
        self._idle: list[Context] = []

    def take(self) -> Context:
        """A context that nobody else uses. Raises `OutOfMemoryError`."""
        try:
            return self._idle.pop()
        except IndexError:  # asking first would race with other threads
            return Context(self.plan, self.threads)

    def give_back(self, context: Context) -> None:
        """Keep a context for the next inference, or let it go where enough are kept."""
        if len(self._idle) < self._keep:
            self._idle.append(context)


class Program:
    """The parts of a model for known input shapes. Shared by requests."""

    def __init__(
        self,
        model: Model,
        parts: Sequence[tuple[Part, Sequence[Output], Sequence[Output]]],
        read: Callable[[Constant], Array],
    ) -> None:
        """Schedule `parts`, each with the values it reads and writes; `read` gives the data of a constant."""
        slots: dict[Output, int] = {}
        for parameter in model.parameters:
            slots[parameter.output(0)] = len(slots)
        self.num_inputs = len(slots)
        outputs = [result.input_value(0) for result in model.results]
        constants: dict[int, Constant] = {}
        for value in (*outputs, *(v for _, reads, _ in parts for v in reads)):
            if isinstance(value.node, Constant) and value not in slots:
                constants[len(slots)] = value.node
                slots[value] = len(slots)
        for _, _, writes in parts:
            for value in writes:
                slots[value] = len(slots)
        self.outputs = tuple(slots[value] for value in outputs)
        self._template: list[Value] = [None] * len(slots)
        for slot, constant in constants.items():
            self._template[slot] = read(constant)
        self.parts = self._scheduled(slots, constants, parts)
        bound = {index for part in self.parts for index in part.targets if index >= 0}
        # Most networks: one plan that reads the inputs and writes the outputs, each in order.
        self._is_one_part = len(self.parts) == 1 and (
            self.parts[0].reads == tuple(range(self.num_inputs))
            and self.parts[0].targets == tuple(range(len(self.outputs)))
        )
        self._one_part_outputs = (
            [(index, shape) for index, shape in enumerate(self.parts[0].shapes) if shape is not None]
            if self._is_one_part
            else []
        )
        self.unbound_outputs = tuple((index, slot) for index, slot in enumerate(self.outputs) if index not in bound)

    def _scheduled(
        self,
        slots: dict[Output, int],
        constants: dict[int, Constant],
        parts: Sequence[tuple[Part, Sequence[Output], Sequence[Output]]],
    ) -> list[ScheduledPart]:
        first_output = {slot: index for index, slot in reversed(list(enumerate(self.outputs)))}
        kept = {*constants, *self.outputs}
        scheduled = []
        for part, reads, writes in reversed(parts):
            read, written = tuple(slots[v] for v in reads), tuple(slots[v] for v in writes)
            frees = tuple({*read, *written} - kept)
            kept.update(frees)
            shapes = tuple(part.output_shapes()) or (None,) * len(written)
            targets = tuple(
                first_output.get(slot, -1) if shape is not None else -1
                for slot, shape in zip(written, shapes, strict=True)
            )
            scheduled.append(ScheduledPart(part, read, written, frees, targets, shapes))
        return scheduled[::-1]

    def run(self, inputs: Sequence[Value], run: Run, make_output: MakeOutput | None = None) -> list[Value]:
        """The outputs. With `make_output`, those that a plan computes are written to the arrays it gives."""
        if self._is_one_part and make_output is not None:
            (step,) = self.parts
            made = [make_output(index, shape) for index, shape in self._one_part_outputs]
            return list(step.part.run(inputs, made, run))
        values = [*inputs, *self._template[self.num_inputs :]]
        for step in self.parts:
            run.check_cancelled()
            targets: list[Array | None]
            if make_output is None:
                targets = [None] * len(step.writes)
            else:
                targets = [
                    None if index < 0 else make_output(index, shape)  # type: ignore[arg-type]
                    for index, shape in zip(step.targets, step.shapes, strict=True)
                ]
            results = step.part.run([values[slot] for slot in step.reads], targets, run)
            for slot, value in zip(step.writes, results, strict=True):
                values[slot] = value
            for slot in step.frees:
                values[slot] = None
        return [values[slot] for slot in self.outputs]


class NativePart(Part):
    """A plan of native kernels."""

    def __init__(self, segment: Segment, threads: int, streams: int) -> None:
        self.segment = segment
        self.contexts = ContextPool(segment.plan, threads, streams)
        self._outputs = [(v.shape.get_shape(), v.element_type.numpy) for v in segment.outputs]
        self._names = segment.step_nodes

    def output_shapes(self) -> Sequence[tuple[int, ...] | None]:
        """All outputs of a plan can be written anywhere."""
        return [shape for shape, _ in self._outputs]

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], run: Run) -> Sequence[Value]:
        """See `Part`."""
        outputs = [
            target if target is not None else np.empty(*self._outputs[index]) for index, target in enumerate(targets)
        ]
        context = self.contexts.take()
        try:
            if run.is_profiling:
                self._run_profiled(context, inputs, outputs, run)
            else:
                context.run(inputs, outputs, cancel=run.cancel)
        except Cancelled:
            run.check_cancelled()  # raises what the inference was stopped with
            raise
        finally:
            self.contexts.give_back(context)
        return outputs

    def _run_profiled(self, context: Context, inputs: Sequence[Value], outputs: Sequence[Array], run: Run) -> None:
        start = time.perf_counter_ns()
        durations = context.run(inputs, outputs, cancel=run.cancel, profile=True)
        assert durations is not None
        for (name, op_type), duration in zip(self._names, durations, strict=True):
            run.record_node(name, op_type, "native", start, start + duration)
            start += duration
