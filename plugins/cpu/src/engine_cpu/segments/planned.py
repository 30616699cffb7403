"""Native segments: nodes with kernels and known shapes, lowered to one plan."""

from __future__ import annotations

from typing import Final

from engine_cpu.recording import RecordingBuilder
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.native import NativeSegment


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    compiler = making.compiler
    recording = None
    if making.keeps_calls:
        recording = RecordingBuilder(isa=compiler.weights.isa, threads=compiler.threads)
    lowered = compiler.lower(segment, making.decisions, making.choices, recording)
    calls = None if recording is None else recording.calls
    plan = NativeSegment(lowered.form, compiler.threads, compiler.streams, calls)
    return ConnectedSegment(plan, segment.inputs, segment.outputs)


NATIVE: Final = SegmentKind("native", _made, "", has_one_node=False)
