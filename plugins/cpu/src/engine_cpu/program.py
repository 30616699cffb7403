"""`Program`: the compiled model for one set of input shapes: segments in order over a table of values.

It does not depend on a graph: a blob stores programs, and runs them where the compiling modules are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from engine.errors import DeclarationError
from engine.native import Plan
from engine.startup import dataclass
from engine_cpu.segments.segment import Array, Inference, RunMemory, Segment, Value


def in_order(data: Array) -> Array:
    """The data of a constant as plans and the evaluation read it: contiguous and aligned, a copy if need be.

    A constant may be anywhere in the file of the model. Plans would copy it for each run; for the evaluation, see
    `engine.ops.reference.constant_value`.
    """
    return np.require(data, requirements=["C", "A"])


MakeOutput = Callable[[int, "tuple[int, ...]"], Array]
"""Returns the array for the output with a given index."""


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

    A plan compares only bytes, and may have been built for the type and shape that a model or an extension declares.
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


class ProgramMemory(NamedTuple):
    """What an inference with a program takes: for the run, for its outputs, and for the variables, in bytes."""

    run: RunMemory
    outputs: int
    states: int


class Program:
    """The segments of a model for known input shapes. Shared by requests."""

    def __init__(
        self,
        num_inputs: int,
        outputs: Sequence[int],
        constants: Mapping[int, Array],
        segments: Sequence[PlacedSegment],
        sizes: Mapping[int, int],
    ) -> None:
        """Schedule `segments` over slots, of which the first are the inputs; `constants` are the data of others.

        `sizes`: the bytes of values, by slot, as far as they are known.
        """
        self.num_inputs = num_inputs
        self._sizes = sizes
        self.outputs = tuple(outputs)
        self.constants: dict[int, Array] = {slot: in_order(data) for slot, data in constants.items()}
        """The data of the constants that segments read, by slot."""
        slots = num_inputs + len(constants) + sum(len(each.writes) for each in segments)
        self._template: list[Value] = [self.constants.get(slot) for slot in range(slots)]
        self.segments = self._scheduled(segments)
        bound = {index for segment in self.segments for index in segment.targets if index >= 0}
        self.whole = self._only_plan()
        self.unbound_outputs = tuple((index, slot) for index, slot in enumerate(self.outputs) if index not in bound)

    def with_own_memory(self) -> Program:
        """The program for another network, which has the same plans and weights, and separate memory for runs."""
        other = copy(self)
        other.segments = [replace(each, segment=each.segment.with_own_memory()) for each in self.segments]
        other.whole = other._only_plan()
        return other

    def release(self) -> None:
        """Free memory that segments keep for later runs."""
        for each in self.segments:
            each.segment.release()

    def _only_plan(self) -> Segment | None:
        """The plan, if there is only one, which reads the inputs and writes the outputs, each in order."""
        if len(self.segments) != 1 or self.segments[0].reads != tuple(range(self.num_inputs)):
            return None
        only = self.segments[0]
        return only.segment if only.targets == tuple(range(len(self.outputs))) else None

    def _scheduled(self, segments: Sequence[PlacedSegment]) -> list[ScheduledSegment]:
        first_output = {slot: index for index, slot in reversed(list(enumerate(self.outputs)))}
        kept = {*self.constants, *self.outputs}
        makers = {
            slot: segment.title or "a part that is not planned before an inference"
            for segment, _, written in segments
            if segment.form is None
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
            if makers and segment.form is not None:
                given = tuple(
                    GivenInput(index, *segment.form.inputs[index], makers[slot])
                    for index, slot in enumerate(read)
                    if slot in makers
                )
            scheduled.append(ScheduledSegment(segment, read, written, frees, targets, shapes, given))
        return scheduled[::-1]

    def memory(self, count: int) -> ProgramMemory:
        """What an inference takes; the outputs after the first `count` are variables."""
        run = sum((each.segment.memory() for each in self.segments), RunMemory())
        live = most = 0
        unknown: list[str] = []
        for each in self.segments:
            for slot in each.writes:
                if slot not in self._sizes:
                    unknown.append(each.segment.title)
                elif slot not in self.outputs:
                    live += self._sizes[slot]
            most = max(most, live)
            freed = (slot for slot in each.frees if slot >= self.num_inputs and slot not in self.outputs)
            live -= sum(self._sizes.get(slot, 0) for slot in freed)
        outputs = [self._sizes.get(slot, 0) for slot in self.outputs]
        run += RunMemory(scratch=most, unknown=tuple(dict.fromkeys(filter(None, unknown))))
        return ProgramMemory(run, sum(outputs[:count]), sum(outputs[count:]))

    @property
    def plans(self) -> list[Plan]:
        """The plans of all segments, in the order of their execution."""
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
