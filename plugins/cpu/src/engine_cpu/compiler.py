"""Compiles a prepared graph with known input shapes to a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field

from engine.ir import Constant, Model, Output
from engine.ir.sizes import known_bytes
from engine.lowering import LengthPattern
from engine.native import PlanBuilder
from engine.ops.origin import extension_of
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass
from engine_cpu.assignment import assign_layouts
from engine_cpu.cache_formats import CacheFormat
from engine_cpu.chaining import join_chains
from engine_cpu.choices import Choices
from engine_cpu.families import FamilyProgram, Recording
from engine_cpu.fitting import Misfit
from engine_cpu.grouping import group_nodes
from engine_cpu.in_place import InPlace, variables_in_place, without
from engine_cpu.lowering import CpuDecisions, CpuGraph
from engine_cpu.program import PlacedSegment, Program
from engine_cpu.programs import Programs
from engine_cpu.recording import RecordingBuilder
from engine_cpu.segment import LoweredSegment, lower_segment
from engine_cpu.segmentation import segments_of
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.planned import NATIVE
from engine_cpu.segments.segment import Array
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

logger = logging.getLogger("engine.cpu")


@dataclass(slots=True)
class Compiler:
    """Builds the programs of one network.

    `precision` is "bf16" if products may be computed in bf16, otherwise "f32". `threads` is the number of threads of an
    inference; kernels are chosen for the tuner's number, which for an imported network comes from the exporting
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
        """A program for a graph whose parameters have static shapes; its decisions by size are added to `choices`.

        With `keeps_calls`, its native segments keep how their plans are built, so that a blob can store them.
        """
        making = Making(self, prepared.decisions, choices or Choices(), keeps_calls)
        segments = [kind.compiled(each, making) for kind, each in segments_of(prepared.graph, prepared.decisions)]
        return _placed(prepared.graph, segments, self.weights.data)

    def programs(self, prepared: CpuGraph) -> Programs:
        """The programs of a graph with dynamic input shapes."""
        return Programs(prepared, self, self.plan_cache_size)

    def recording(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> Recording:
        """The calls with which the plan of a graph of known shapes is built. Raises `Misfit` if it has several parts.

        `choices`: the choices of the other plans of a family. `may_assume`: see `Programs.get`.
        """
        decisions = prepared.decisions
        segment = _only_plan(segments_of(prepared.graph, decisions))
        found = variables_in_place(prepared.graph, self.cache_format)
        states = [each for each in found if may_assume or not each.is_assumed]

        def lower(segment: GraphSegment, builder: RecordingBuilder) -> LoweredSegment:
            choices.begin()
            lowered = self.lower(segment, decisions, choices, builder, states)
            choices.check()
            return lowered

        return Recording.of(prepared.graph, segment, states, lower, self.weights.isa)

    def in_place(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> FamilyProgram:
        """A program for a graph of known shapes that appends to variables in place. Raises `Misfit` if it has parts."""
        recording = self.recording(prepared, choices, may_assume=may_assume)
        return FamilyProgram(LengthPattern((), ()), (), (), lambda _: recording, self.threads, self.streams)

    def lower(
        self,
        segment: GraphSegment,
        decisions: CpuDecisions,
        choices: Choices,
        plan: PlanBuilder | None = None,
        states: Sequence[InPlace] = (),
    ) -> LoweredSegment:
        """The plan of nodes with kernels; it is added to `plan`, if given. `states`: the variables in place."""
        self.lowered += 1
        inputs, outputs = without(segment.inputs, states), without(segment.outputs, states)
        bypassed = {node for state in states for node in state.bypassed}
        items = group_nodes([node for node in segment.nodes if node not in bypassed], outputs, decisions)
        options = assign_layouts(items, outputs, self.precision)
        # 0: whether a chain has rows for all workers depends on the number of images.
        threads = 0 if self.weights.is_repeatable else self.tuner.threads
        items, options = join_chains(items, options, outputs, threads, choices)
        return lower_segment(
            items, options, inputs, outputs, self.weights, self.tuner, self.precision, plan, states, choices
        )


def _only_plan(segments: Sequence[tuple[SegmentKind, GraphSegment]]) -> GraphSegment:
    """The only segment, whose plan differs between lengths only in numbers. Raises `Misfit` for any others."""
    for kind, segment in segments:
        if kind is not NATIVE:
            node = segment.nodes[0]
            raise Misfit(f"{node.op_type} runs outside the plan ({kind.name})", node.friendly_name)
        for node in segment.nodes:
            if extension_of(node):
                raise Misfit(
                    f"the kernel of {node.op_type}, of an extension, is prepared for each length", node.friendly_name
                )
    if len(segments) != 1:
        raise Misfit(f"the program has {len(segments)} plans")
    return segments[0][1]


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
        {slot: size for value, slot in slots.items() if (size := known_bytes(value.type)) is not None},
    )
