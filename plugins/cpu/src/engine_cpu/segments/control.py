"""Control flow: an If, a Loop or a Scan, whose bodies are programs of their own."""

from __future__ import annotations

from typing import Final

from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind

CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
"""The operators whose bodies are compiled."""


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    # Few models have control flow.
    from engine_cpu.segments.choice import ChoiceSegment
    from engine_cpu.segments.repetition import RepetitionSegment

    (node,) = segment.nodes
    make = ChoiceSegment if node.op_type == "If" else RepetitionSegment
    flow: ChoiceSegment | RepetitionSegment = make(node, making.compiler)
    return ConnectedSegment(flow, flow.reads, tuple(node.outputs))


CONTROL: Final = SegmentKind("control flow", _made, "runs parts of the model as values decide")
