"""From a prepared graph with known input shapes to a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Output, paused_collector
from engine.ir.walk import all_nodes
from engine.lowering import LengthPattern, PreparedGraph
from engine.native import PlanBuilder
from engine.runtime.lifecycle import ForkSafeLock
from engine_cpu.assignment import assign_layouts
from engine_cpu.cache_formats import CacheFormat
from engine_cpu.chaining import join_chains
from engine_cpu.choices import Choices
from engine_cpu.families import FamilyProgram, Recording
from engine_cpu.grouping import group_nodes
from engine_cpu.in_place import InPlace, variables_in_place, without
from engine_cpu.lowering import LOWERINGS, CpuDecisions, CpuGraph
from engine_cpu.lowering.counting import CountedLowering
from engine_cpu.program import Array, Inference, NativeSegment, PlacedSegment, Program, Segment, Value
from engine_cpu.programs import Programs
from engine_cpu.recording import RecordingBuilder
from engine_cpu.segment import LoweredSegment, lower_segment
from engine_cpu.segmentation import GraphSegment, SegmentKind, extract, late_values, segments_of
from engine_cpu.segments.choice import ChoiceSegment
from engine_cpu.segments.counted import CountedSegment
from engine_cpu.segments.host import HostSegment
from engine_cpu.segments.repetition import RepetitionSegment
from engine_cpu.segments.values import ValuesSegment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

logger = logging.getLogger("engine.cpu")

ConnectedSegment: TypeAlias = "tuple[Segment, Sequence[Output], Sequence[Output]]"
"""A segment, the values that it reads and those that it writes."""


_WHY_NOT_STORED: Final = {
    SegmentKind.CONTROL: "runs parts of the model as values decide",
    SegmentKind.HOST: "runs on the reference evaluator",
    SegmentKind.VALUES: "is planned for values that only an inference knows",
    SegmentKind.COUNTED: "has a result whose shape only an inference knows",
    SegmentKind.DEFERRED: "has inputs whose shapes only an inference knows",
}


@dataclass(slots=True)
class Compiler:
    """Builds the programs of one network.

    `precision` is "bf16" if products may be computed in bf16, else "f32". `threads` is the number of threads of an
    inference; kernels are chosen for the tuner's number, which for an imported network is that of the exporting
    process. `cache_format` is how variables keep keys and values.
    """

    weights: WeightStore
    tuner: CpuTuner
    streams: int
    plan_cache_size: int
    precision: str
    threads: int
    allow_reference: bool
    cache_format: CacheFormat
    building: ForkSafeLock = field(default_factory=ForkSafeLock)
    """Held while a program is built: all programs share the weights and the tuner."""
    lowered: int = 0
    """How many plans were lowered."""

    def program(self, prepared: CpuGraph, choices: Choices | None = None, *, keeps_calls: bool = False) -> Program:
        """A program for a graph whose parameters have static shapes; what it decides by size is added to `choices`.

        With `keeps_calls`, its native segments keep how their plans are built, so that a blob can store them.
        """
        decisions, choices = prepared.decisions, choices or Choices()
        segments = []
        for each in segments_of(prepared.graph, decisions):
            made = self._segment(each, decisions, choices, keeps_calls=keeps_calls)
            if each.kind is not SegmentKind.NATIVE:
                made[0].why_not_stored = f"{each.nodes[0]} {_WHY_NOT_STORED[each.kind]}"
            segments.append(made)
        return _placed(prepared.graph, segments, self.weights.data)

    def programs(self, prepared: CpuGraph) -> Programs:
        """The programs of a graph with dynamic input shapes."""
        return Programs(prepared, self, self.plan_cache_size)

    def recording(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> Recording:
        """The calls with which the plan of a graph of known shapes is built. Raises `Misfit` if it has several parts.

        `choices`: those of the other plans of a family. `may_assume`: see `Programs.get`.
        """
        decisions = prepared.decisions
        segments = segments_of(prepared.graph, decisions)
        found = variables_in_place(prepared.graph, self.cache_format)
        states = [each for each in found if may_assume or not each.is_assumed]

        def lower(segment: GraphSegment, builder: RecordingBuilder) -> LoweredSegment:
            choices.begin()
            lowered = self._lower(segment, decisions, choices, builder, states)
            choices.check()
            return lowered

        return Recording.of(prepared.graph, segments, states, lower, self.weights.isa)

    def in_place(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> FamilyProgram:
        """A program for a graph of known shapes that appends to variables in place. Raises `Misfit` if it has parts."""
        recording = self.recording(prepared, choices, may_assume=may_assume)
        return FamilyProgram(LengthPattern((), ()), (), (), lambda _: recording, self.threads, self.streams)

    def _segment(
        self, segment: GraphSegment, decisions: CpuDecisions, choices: Choices, *, keeps_calls: bool
    ) -> ConnectedSegment:
        if segment.kind is SegmentKind.CONTROL:
            (node,) = segment.nodes
            flow = ChoiceSegment(node, self) if node.op_type == "If" else RepetitionSegment(node, self)
            return flow, flow.reads, tuple(node.outputs)
        if segment.kind is SegmentKind.HOST:
            (node,) = segment.nodes
            self.weights.keep(each for body in node.bodies.values() for each in _constants_in(body))
            if not self.allow_reference:
                why = decisions.refusal(node)
                reason = why.reason if why else "its output shape depends on data"
                raise UnsupportedError(f"{node}: no native kernel ({reason}) and ALLOW_REFERENCE is off")
            return HostSegment(node), [v for v in node.input_values if v is not None], tuple(node.outputs)
        if segment.kind is SegmentKind.VALUES:
            (node,) = segment.nodes
            late, evaluated = late_values(node, decisions), HostSegment(node) if self.allow_reference else None
            bound = ValuesSegment(node, late, self._alone, self.plan_cache_size, self.building, evaluated)
            return bound, [v for v in node.input_values if v is not None], tuple(node.outputs)
        if segment.kind is SegmentKind.COUNTED:
            (node,) = segment.nodes
            spec, lowering = decisions[node].spec, decisions[node].lowering
            assert isinstance(lowering, CountedLowering)
            self.lowered += 1
            counted = CountedSegment(spec, lowering, self.weights.isa, self.threads, self.streams)
            return counted, [v for v in node.input_values if v is not None], tuple(node.outputs)
        if segment.kind is SegmentKind.DEFERRED:
            graph = extract(segment)
            self.weights.keep(_constants_in(graph))
            programs = self.programs(PreparedGraph.of(graph, LOWERINGS))
            return DeferredSegment(programs), segment.inputs, segment.outputs
        recording = RecordingBuilder(isa=self.weights.isa) if keeps_calls else None
        lowered = self._lower(segment, decisions, choices, recording)
        calls = None if recording is None else recording.calls
        return NativeSegment(lowered.form, self.threads, self.streams, calls), segment.inputs, segment.outputs

    def _alone(self, model: Model) -> Program:
        """The program of a node whose values are known."""
        with paused_collector():  # built during an inference
            return self.program(PreparedGraph.of(model, LOWERINGS))

    def _lower(
        self,
        segment: GraphSegment,
        decisions: CpuDecisions,
        choices: Choices,
        plan: PlanBuilder | None = None,
        states: Sequence[InPlace] = (),
    ) -> LoweredSegment:
        self.lowered += 1
        inputs, outputs = without(segment.inputs, states), without(segment.outputs, states)
        bypassed = {node for state in states for node in state.bypassed}
        items = group_nodes([node for node in segment.nodes if node not in bypassed], outputs, decisions)
        options = assign_layouts(items, outputs, self.precision)
        items, options = join_chains(items, options, outputs, self.tuner.threads, choices)
        return lower_segment(
            items, options, inputs, outputs, self.weights, self.tuner, self.precision, plan, states, choices
        )


def _placed(model: Model, segments: Sequence[ConnectedSegment], read: Callable[[Constant], Array]) -> Program:
    """The program of a model's segments; `read` gives the data of a constant."""
    slots: dict[Output, int] = {}
    for parameter in model.parameters:
        slots[parameter.output(0)] = len(slots)
    num_inputs = len(slots)
    outputs = [result.input_value(0) for result in model.results]
    constants: dict[int, Constant] = {}
    for value in (*outputs, *(v for _, reads, _ in segments for v in reads)):
        if isinstance(value.node, Constant) and value not in slots:
            constants[len(slots)] = value.node
            slots[value] = len(slots)
    for _, _, writes in segments:
        for value in writes:
            slots[value] = len(slots)
    return Program(
        num_inputs,
        [slots[value] for value in outputs],
        {slot: read(constant) for slot, constant in constants.items()},
        [
            PlacedSegment(segment, tuple(slots[v] for v in reads), tuple(slots[v] for v in writes))
            for segment, reads, writes in segments
        ],
    )


def _constants_in(graph: Model) -> Iterator[Constant]:
    return (node for node in all_nodes(graph) if isinstance(node, Constant))


class DeferredSegment(Segment):
    """Nodes whose shapes become known only during an inference."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        """See `Segment`."""
        return self.programs.get(inputs).run(inputs, inference)
