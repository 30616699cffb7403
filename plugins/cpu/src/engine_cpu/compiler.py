"""From a prepared graph with known input shapes to a program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.errors import UnsupportedError
from engine.ir import paused_collector
from engine.lowering import PlanCache, PreparedGraph, Shapes, shapes_of
from engine.runtime.lifecycle import ForkSafeLock
from engine_cpu.assignment import assign_layouts
from engine_cpu.chaining import join_chains
from engine_cpu.grouping import group_nodes
from engine_cpu.host_segment import HostSegment
from engine_cpu.lowering import LOWERINGS, CpuDecisions, CpuGraph
from engine_cpu.program import Array, ConnectedSegment, Inference, NativeSegment, Program, Segment, Value
from engine_cpu.segment import lower_segment
from engine_cpu.segmentation import GraphSegment, SegmentKind, extract, segments_of
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

logger = logging.getLogger("engine.cpu")

ProgramCache: TypeAlias = "PlanCache[Shapes, Program]"
"""A program for each recent set of input shapes."""


@dataclass(slots=True)
class Compiler:
    """Builds the programs of one network.

    `precision` is "bf16" if products may be computed in bf16, else "f32". `threads` is the number of threads of an
    inference; kernels are chosen for the tuner's number, which for an imported network is that of the exporting
    process.
    """

    weights: WeightStore
    tuner: CpuTuner
    streams: int
    plan_cache_size: int
    precision: str
    threads: int
    allow_reference: bool
    building: ForkSafeLock = field(default_factory=ForkSafeLock)
    """Held while a program is built: all programs share the weights and the tuner."""

    def program(self, prepared: CpuGraph) -> Program:
        """A program for a graph whose parameters have static shapes."""
        decisions = prepared.decisions
        segments = [self._segment(each, decisions) for each in segments_of(prepared.graph, decisions)]
        return Program(prepared.graph, segments, self.weights.data)

    def programs(self, prepared: CpuGraph) -> ProgramCache:
        """The programs of a graph with dynamic input shapes."""

        def build(shapes: Shapes) -> Program:
            with paused_collector():  # built during an inference
                return self.program(prepared.at(shapes))

        return PlanCache(build, self.plan_cache_size, building=self.building)

    def _segment(self, segment: GraphSegment, decisions: CpuDecisions) -> ConnectedSegment:
        if segment.kind is SegmentKind.HOST:
            (node,) = segment.nodes
            if not self.allow_reference:
                why = decisions.refusal(node)
                reason = why.reason if why else "its output shape depends on data"
                raise UnsupportedError(f"{node}: no native kernel ({reason}) and ALLOW_REFERENCE is off")
            return HostSegment(node), [v for v in node.input_values if v is not None], tuple(node.outputs)
        if segment.kind is SegmentKind.DEFERRED:
            programs = self.programs(PreparedGraph.of(extract(segment), LOWERINGS))
            return DeferredSegment(programs), segment.inputs, segment.outputs
        items = group_nodes(segment.nodes, segment.outputs, decisions)
        options = assign_layouts(items, segment.outputs, self.precision)
        items, options = join_chains(items, options, segment.outputs, self.tuner.threads)
        lowered = lower_segment(
            items, options, segment.inputs, segment.outputs, self.weights, self.tuner, self.precision
        )
        return NativeSegment(lowered, self.threads, self.streams), segment.inputs, segment.outputs


class DeferredSegment(Segment):
    """Nodes whose shapes become known only during an inference."""

    def __init__(self, programs: ProgramCache) -> None:
        self.programs = programs

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        """See `Segment`."""
        return self.programs.get(shapes_of(inputs)).run(inputs, inference)
