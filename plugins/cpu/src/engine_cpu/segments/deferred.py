"""`DeferredSegment`: nodes whose shapes become known only during an inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.lowering import PreparedGraph
from engine_cpu.lowering import LOWERINGS
from engine_cpu.programs import Programs
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.segment import Array, Inference, RunMemory, Segment, Value


class DeferredSegment(Segment):
    """A graph of its own, compiled for the shapes of its inputs."""

    def __init__(self, programs: Programs, names: tuple[str, ...]) -> None:
        """`names`: of the nodes."""
        self.programs = programs
        self._names = names

    def memory(self) -> RunMemory:
        return RunMemory(unknown=self._names)

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        return self.programs.get(inputs).run(inputs, inference)


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    graph = segment.extract()
    making.compiler.weights.keep(graph)
    names = tuple(node.friendly_name for node in segment.nodes)
    programs = making.compiler.programs(PreparedGraph.of(graph, LOWERINGS))
    return ConnectedSegment(DeferredSegment(programs, names), segment.inputs, segment.outputs)


DEFERRED: Final = SegmentKind("deferred", _made, "has inputs whose shapes only an inference knows", has_one_node=False)
