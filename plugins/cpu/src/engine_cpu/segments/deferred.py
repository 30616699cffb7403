"""`DeferredSegment`: nodes whose shapes become known only during an inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.lowering import PreparedGraph
from engine_cpu.lowering import LOWERINGS
from engine_cpu.programs import Programs
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.segment import Array, Inference, Segment, Value


class DeferredSegment(Segment):
    """A graph of its own, compiled for the shapes of its inputs."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        return self.programs.get(inputs).run(inputs, inference)


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    graph = segment.extract()
    making.compiler.weights.keep(graph)
    programs = making.compiler.programs(PreparedGraph.of(graph, LOWERINGS))
    return ConnectedSegment(DeferredSegment(programs), segment.inputs, segment.outputs)


DEFERRED: Final = SegmentKind("deferred", _made, "has inputs whose shapes only an inference knows", has_one_node=False)
