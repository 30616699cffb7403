"""From a prepared graph with known input shapes to a program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import UnsupportedError
from engine.ir import Output, paused_collector
from engine.lowering import PlanCache, Shapes, prepared_already, shapes_of
from engine_cpu.assignment import assign_layouts
from engine_cpu.grouping import group_nodes
from engine_cpu.host_part import HostPart
from engine_cpu.lowering import LOWERINGS, CpuDecisions, CpuGraph
from engine_cpu.partition import GraphPart, PartKind, extract, partition
from engine_cpu.program import Array, NativePart, Part, Program, Run, Value
from engine_cpu.segment import build_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

logger = logging.getLogger("engine.cpu")

ProgramCache: TypeAlias = "PlanCache[Shapes, Program]"
"""A program for each set of input shapes that came lately."""


@dataclass(slots=True)
class Compiler:
    """Makes programs of one network.

    `precision` is "bf16" where products may be computed in it, and "f32" where they may not. `threads` are those that
    run an inference; kernels are chosen for those of the tuner, which an imported network has from where it was made.
    """

    weights: WeightStore
    tuner: CpuTuner
    streams: int
    plan_cache_size: int
    precision: str
    threads: int
    allow_reference: bool

    def program(self, prepared: CpuGraph) -> Program:
        """A program for a graph whose parameters have static shapes."""
        decisions = prepared.decisions
        parts = [self._part(part, decisions) for part in partition(prepared.graph, decisions)]
        return Program(prepared.graph, parts, self.weights.data)

    def programs(self, prepared: CpuGraph) -> ProgramCache:
        """The programs of a graph whose lengths become known with the inputs of an inference."""

        def build(shapes: Shapes) -> Program:
            with paused_collector():  # while an inference waits
                return self.program(prepared.at(shapes))

        return PlanCache(build, self.plan_cache_size)

    def _part(self, part: GraphPart, decisions: CpuDecisions) -> tuple[Part, Sequence[Output], Sequence[Output]]:
        if part.kind is PartKind.HOST:
            (node,) = part.nodes
            if not self.allow_reference:
                why = decisions.refusal(node)
                reason = why.reason if why else "its shape depends on data"
                raise UnsupportedError(f"{node}: no native kernel ({reason}), and ALLOW_REFERENCE is off")
            return HostPart(node), [v for v in node.input_values if v is not None], tuple(node.outputs)
        if part.kind is PartKind.DEFERRED:
            programs = self.programs(prepared_already(extract(part), LOWERINGS))
            return DeferredPart(programs), part.inputs, part.outputs
        items = group_nodes(part.nodes, part.outputs, decisions)
        options = assign_layouts(items, part.outputs, self.precision)
        segment = build_segment(items, options, part.inputs, part.outputs, self.weights, self.tuner, self.precision)
        return NativePart(segment, self.threads, self.streams), part.inputs, part.outputs


class DeferredPart(Part):
    """Nodes whose shapes become known during an inference."""

    def __init__(self, programs: ProgramCache) -> None:
        self.programs = programs

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], run: Run) -> Sequence[Value]:
        """See `Part`."""
        return self.programs.get(shapes_of(inputs)).run(inputs, run)
