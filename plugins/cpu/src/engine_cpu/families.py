"""Programs whose lengths vary: one family of plans for all lengths that match a pattern."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.errors import Cancelled, InputError, PlanError
from engine.ir import Model
from engine.lowering import LengthPattern, LengthVector
from engine.native import FamilyRunner, Number, Plan, PlanFamily, Varying, empty_huge
from engine.runtime import GrowingArray, GrowingForm, GrowingSet
from engine.runtime.growing import plain
from engine.startup import dataclass
from engine_cpu.cache_formats import F32, CacheFormat
from engine_cpu.fitting import Fit, Lengths, Misfit, check_lengths, fit_family, sample_lengths
from engine_cpu.in_place import InPlace
from engine_cpu.program import MakeOutput, ProgramMemory
from engine_cpu.recording import PlanCalls, RecordingBuilder
from engine_cpu.segment import LoweredSegment
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.segment import Array, Inference, RunMemory, Value


@dataclass(frozen=True, slots=True)
class Recording:
    """A program for some lengths that is one native segment: the calls that build its plan, and its interface.

    Attributes:
        calls: what builds the plan.
        plan: the plan, or one for other lengths with the same steps.
        step_nodes: the friendly name and the operator of the node of each step.
        reads: the inputs of the model that the plan reads, in its order.
        writes: the outputs of the model that the plan writes, in its order.
        outputs: what these outputs are, in the same order.
        appends: the variables in place, in the order of the plan's states.
        counts: how many positions the plan appends to each of them.
        num_outputs: the number of the model's outputs.
        is_assuming: see `InPlace.is_assumed`.
    """

    calls: PlanCalls
    plan: Plan
    step_nodes: Sequence[tuple[str, str]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    outputs: tuple[OutputForm, ...]
    appends: tuple[Appended, ...]
    counts: tuple[int, ...]
    num_outputs: int
    is_assuming: bool

    @classmethod
    def of(
        cls,
        graph: Model,
        segment: GraphSegment,
        states: Sequence[InPlace],
        lower: Callable[[GraphSegment, RecordingBuilder], LoweredSegment],
        isa: str,
    ) -> Recording:
        """Lower a graph of one segment. Raises `Misfit` unless it computes all outputs."""
        results = [result.input_value(0) for result in graph.results]
        if len(set(results)) != len(results) or set(results) != set(segment.outputs):
            raise Misfit("an output is an input, a constant, or the same as another one")
        builder = RecordingBuilder(isa=isa)
        lowered = lower(segment, builder)
        sources = {parameter.output(0): index for index, parameter in enumerate(graph.parameters)}
        targets = {value: index for index, value in enumerate(results)}
        return cls(
            builder.calls,
            lowered.plan,
            lowered.step_nodes,
            tuple(sources[value] for value in lowered.inputs),
            tuple(targets[value] for value in lowered.outputs),
            tuple(
                OutputForm(value.name, value.node.friendly_name, value.element_type.numpy, value.shape.get_shape())
                for value in lowered.outputs
            ),
            tuple(
                Appended(
                    each.parameter,
                    each.result,
                    GrowingForm(each.axis, _kept_format(each), each.bound),
                    graph.parameters[each.parameter].output(0).element_type.numpy,
                )
                for each in states
            ),
            tuple(each.count for each in states),
            len(results),
            any(each.is_assumed for each in states),
        )


def _kept_format(state: InPlace) -> CacheFormat | None:
    return None if state.format is F32 else state.format


class OutputForm(NamedTuple):
    """An output of a plan: the name of the value and of its node, its type and shape."""

    name: str
    node: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Appended(NamedTuple):
    """A variable in place: the input and output of the model, and the form of its value."""

    parameter: int
    result: int
    form: GrowingForm
    dtype: np.dtype[Any]


class FamilyProgram:
    """The plans for all lengths that match a pattern, from `least` to `most` of each leading length.

    Shared by requests.
    """

    def __init__(
        self,
        pattern: LengthPattern,
        least: Lengths,
        most: Lengths,
        record: Callable[[LengthVector], Recording],
        threads: int,
        streams: int,
    ) -> None:
        """Fit the family to some of the plans. Raises `Misfit` if they do not have one form.

        `record` gives the plan for the lengths of all groups, and keeps it while several ranges are tried; all plans
        follow the same choices.
        """
        self.pattern, self.least, self.most = pattern, least, most
        self._record: Callable[[LengthVector], Recording] | None = record
        self._fit_any()
        recording = self._recording(most)
        self._record = None
        nodes = recording.step_nodes
        self.names = [("constant", "Constant") if step is None else nodes[step] for step in self._origins]
        steps = recording.plan.steps
        self._kernels = ["" if step is None else steps[step].kernel for step in self._origins]
        self._reads, self._writes, self._appends = recording.reads, recording.writes, recording.appends
        self.is_checked = False
        """Whether a request has accepted the outputs; their types and the form of their shapes are always the same."""
        self.is_assuming = recording.is_assuming
        self._num_outputs = recording.num_outputs
        self._threads = threads
        self._runner = FamilyRunner(self._family, self._forms, max_threads=threads, kept=streams)

    def _fit_any(self) -> None:
        """Fit polynomials of the lowest degree; masks of two lengths for each of a batch have three factors."""
        misfits: list[Misfit] = []
        for degree in range(1, 2 + len(self.least)):
            try:
                return self._fit(degree=degree)
            except Misfit as e:
                misfits.append(e)
                if not e.is_number:
                    break
        raise next((each for each in misfits if each.ends), misfits[-1])

    def _fit(self, *, degree: int) -> None:
        """Fit the family to plans for the least lengths, and check it by the plans for greater ones."""
        if any(high <= low + degree for low, high in zip(self.least, self.most, strict=True)):
            raise Misfit(f"there are too few lengths from {list(self.least)} to {list(self.most)}")
        samples = sample_lengths(self.least, degree)
        self._fit_to(samples, degree)
        if self.most in samples:
            return
        try:
            self._fit_to([*samples, *check_lengths(self.least, self.most)], degree)
        except Misfit as e:
            raise Misfit(e.reason, e.node, is_number=e.is_number, ends=self._ends(samples, degree)) from e

    def _ends(self, samples: list[Lengths], degree: int) -> tuple[int, ...]:
        """The lengths whose greatest value does not fit, with the minimum lengths of the others, or otherwise all."""
        if len(self.most) == 1:
            return (0,)
        found = []
        for index, high in enumerate(self.most):
            corner = (*self.least[:index], high, *self.least[index + 1 :])
            try:
                self._fit_to([*samples, corner], degree)
            except Misfit:
                found.append(index)
        return tuple(found or range(len(self.most)))

    def _fit_to(self, samples: list[Lengths], degree: int) -> None:
        try:
            recordings = [self._recording(lengths) for lengths in samples]
            first = recordings[0]
            ports = [(each.reads, each.writes, each.appends) for each in recordings]
            if any(each != ports[0] for each in ports):
                raise Misfit("the order of inputs or outputs differs between lengths")
            fit = Fit(samples, degree)
            calls = [each.calls for each in recordings]
            self._family: PlanFamily
            isa, is_trial = first.plan.isa, self.most not in samples
            self._family, self._origins = fit_family(calls, fit, self.most, isa, is_trial=is_trial)
            self._forms = [
                (
                    form.dtype,
                    [
                        fit.number(
                            [each.outputs[index].shape[axis] for each in recordings],
                            f"dimension {axis} of output {form.name}",
                            form.node,
                        )
                        for axis in range(len(form.shape))
                    ],
                )
                for index, form in enumerate(first.outputs)
            ]
            self._counts = [
                fit.number([each.counts[index] for each in recordings], "what is appended to a variable")
                for index in range(len(first.counts))
            ]
        except (PlanError, InputError) as e:
            raise Misfit(str(e)) from e

    def _recording(self, lengths: Lengths) -> Recording:
        assert self._record is not None
        return self._record(self.pattern.vector(lengths))

    def at(self, vector: LengthVector) -> BoundFamily | None:
        """The program for these lengths; None if they do not match the pattern or are out of range."""
        leads = self.pattern.leading(vector)
        if leads is None:
            return None
        if any(not low <= x <= high for low, x, high in zip(self.least, leads, self.most, strict=True)):
            return None
        return BoundFamily(self, leads)

    def plan(self, leads: Lengths) -> Plan:
        """The plan for these lengths, which is built on first use."""
        return self._family.plan(leads)

    def run(
        self, leads: Lengths, inputs: Sequence[Value], inference: Inference, make_output: MakeOutput | None
    ) -> list[Value]:
        """Run; returns the outputs of the model. With `make_output`, the plan writes to its arrays."""
        if make_output is None:
            outputs = self._runner.outputs(leads)
        else:
            shapes = [_at(shape, leads) for _, shape in self._forms]
            outputs = [make_output(index, shape) for index, shape in zip(self._writes, shapes, strict=True)]
        results: list[Value] = [None] * self._num_outputs
        for index, output in zip(self._writes, outputs, strict=True):
            results[index] = output
        blocks: list[Array] = []
        if self._appends:
            pasts = [inputs[each.parameter] for each in self._appends]
            grown, blocks = self._grown(pasts, _at(self._counts, leads))
            for each, value in zip(self._appends, grown, strict=True):
                results[each.result] = value
        self._fill(leads, [plain(inputs[index]) for index in self._reads], outputs, blocks, inference)
        return results

    def memory(self, leads: Lengths, shapes: Sequence[tuple[int, ...]]) -> ProgramMemory:
        """What an inference with these lengths takes; `shapes`: of all inputs of the model."""
        plan = self.plan(leads)
        outputs = sum(math.prod(_at(shape, leads)) * dtype.itemsize for dtype, shape in self._forms)
        states = 0
        for each, count in zip(self._appends, _at(self._counts, leads), strict=True):
            past = shapes[each.parameter]
            states += (past[each.form.axis] + count) * each.form.position_bytes(past, each.dtype)
        return ProgramMemory(RunMemory.of_plans([plan], self._threads), outputs, states)

    def _grown(self, pasts: Sequence[Value], counts: Sequence[int]) -> tuple[list[GrowingArray], list[Array]]:
        """The next values of variables in place, whose new positions are to be written, and their memory."""
        group = pasts[0].group if isinstance(pasts[0], GrowingArray) else None
        if group is not None and len(set(counts)) == 1 and _are_all_of(group, pasts):
            longer = group.extended(counts[0])
            return longer.arrays, longer.blocks
        # Values of equal length become one set.
        places: dict[tuple[int, int], list[int]] = {}
        for index, (past, count) in enumerate(zip(pasts, counts, strict=True)):
            places.setdefault((past.shape[self._appends[index].form.axis], count), []).append(index)
        grown: dict[int, GrowingArray] = {}
        blocks: dict[int, Array] = {}
        for (_, count), indices in places.items():
            group = pasts[indices[0]].group if isinstance(pasts[indices[0]], GrowingArray) else None
            if group is None or not _are_all_of(group, [pasts[index] for index in indices]):
                forms = [self._appends[index].form for index in indices]
                group = GrowingSet.of([plain(pasts[index]) for index in indices], forms, empty_huge)
            longer = group.extended(count)
            grown |= dict(zip(indices, longer.arrays, strict=True))
            blocks |= dict(zip(indices, longer.blocks, strict=True))
        return [grown[index] for index in range(len(pasts))], [blocks[index] for index in range(len(pasts))]

    def _fill(
        self,
        leads: Lengths,
        inputs: Sequence[Value],
        outputs: Sequence[Array],
        states: Sequence[Array],
        inference: Inference,
    ) -> None:
        start = time.perf_counter_ns()
        try:
            durations = self._runner.fill(
                leads, inputs, outputs, states, inference.cancel, profile=inference.is_profiling
            )
        except Cancelled:
            inference.check_cancelled()  # raises the error that stopped the inference
            raise
        if durations is None:
            return
        for (name, op_type), kernel, duration in zip(self.names, self._kernels, durations, strict=True):
            inference.record_node(name, op_type, "native", start, start + duration, kernel=kernel)
            start += duration


def _are_all_of(group: GrowingSet, values: Sequence[Value]) -> bool:
    """Whether these are the values of a set, in its order."""
    return len(group) == len(values) and all(
        isinstance(value, GrowingArray) and value.group is group and value.index == index
        for index, value in enumerate(values)
    )


def _at(numbers: Sequence[Number], lengths: Lengths) -> tuple[int, ...]:
    return tuple(each.at(lengths) if isinstance(each, Varying) else each for each in numbers)


@dataclass(frozen=True, slots=True)
class BoundFamily:
    """A family for the lengths of one inference, with the interface of `Program`."""

    family: FamilyProgram
    leads: Lengths

    def run(self, inputs: Sequence[Value], inference: Inference, make_output: MakeOutput | None = None) -> list[Value]:
        """Run the plan for the bound lengths, as `Program.run` does."""
        inference.check_cancelled()
        return self.family.run(self.leads, inputs, inference, make_output)

    @property
    def plans(self) -> list[Plan]:
        """The one plan that runs for the bound lengths."""
        return [self.family.plan(self.leads)]

    def memory(self, shapes: Sequence[tuple[int, ...]]) -> ProgramMemory:
        """What an inference with inputs of these shapes takes."""
        return self.family.memory(self.leads, shapes)

    @property
    def is_assuming(self) -> bool:
        """Whether the program may fail although the inputs are right; see `InPlace.is_assumed`."""
        return self.family.is_assuming

    @property
    def states(self) -> list[int]:
        """The outputs that are variables in place, which `run` gives."""
        return [each.result for each in self.family._appends]
