"""`SegmentKind`: how nodes of one kind become a segment. Each kind is a constant of the module of its segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.ir import Node, Output
from engine.native import PlanBuilder
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass
from engine_cpu.choices import Choices
from engine_cpu.lowering import CpuDecisions, CpuGraph
from engine_cpu.program import Program
from engine_cpu.programs import Programs
from engine_cpu.segment import LoweredSegment
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.segment import Segment
from engine_cpu.weights import WeightStore


class SegmentCompiler(Protocol):
    """The members of a network's compiler that compiling segments needs."""

    weights: WeightStore
    threads: int
    streams: int
    plan_cache_size: int
    allow_reference: bool
    building: ForkSafeLock
    lowered: int

    def program(self, prepared: CpuGraph) -> Program:
        """The program of a graph of known shapes."""

    def programs(self, prepared: CpuGraph) -> Programs:
        """The programs of a graph of unknown shapes."""

    def lower(
        self, segment: GraphSegment, decisions: CpuDecisions, choices: Choices, plan: PlanBuilder | None
    ) -> LoweredSegment:
        """The plan of nodes with kernels; it is added to `plan`, if given."""


@dataclass(frozen=True, slots=True)
class Making:
    """The inputs for making the segments of one program.

    With `keeps_calls`, plans keep how they are built. What is decided by size is added to `choices`.
    """

    compiler: SegmentCompiler
    decisions: CpuDecisions
    choices: Choices
    keeps_calls: bool


class ConnectedSegment(NamedTuple):
    """A segment, the values that it reads and those that it writes."""

    segment: Segment
    reads: Sequence[Output]
    writes: Sequence[Output]

    @classmethod
    def of_node(cls, segment: Segment, node: Node) -> ConnectedSegment:
        """A segment that reads the inputs of a node that are not omitted, and writes all its outputs."""
        return cls(segment, [value for value in node.input_values if value is not None], tuple(node.outputs))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentKind:
    """A way in which nodes run.

    Attributes:
        name: for messages.
        make: compiles nodes of this kind.
        why_not_stored: why a blob cannot have such a segment, said of its first node; "" if it can.
        has_one_node: whether each node is a segment of its own.
    """

    name: str
    make: Callable[[GraphSegment, Making], ConnectedSegment]
    why_not_stored: str
    has_one_node: bool = True

    def compiled(self, segment: GraphSegment, making: Making) -> ConnectedSegment:
        """Compile a segment of this kind, and note why blobs cannot store it, if so."""
        made = self.make(segment, making)
        if self.why_not_stored:
            made.segment.why_not_stored = f"{segment.nodes[0]} {self.why_not_stored}"
        return made
