"""Cuts a graph into segments that run in sequence: native ones, control flow, host and deferred ones.

A node is DEFERRED if the shape of one of its inputs becomes known only during an inference; a deferred segment is then
cut into segments for the actual shapes. A node of kind COUNTED has a kernel that counts a length of its results, and
one of kind VALUES one whose plan depends on the values of some inputs, such as the axes of a reduction, that are
computed during the inference.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.ir import Constant, Model, Node, Output, Parameter, Result, TensorType
from engine_cpu.lowering import CpuDecisions
from engine_cpu.lowering.counting import CountedLowering


class SegmentKind(enum.Enum):
    """How a segment runs."""

    NATIVE = "native"
    CONTROL = "control flow"
    HOST = "reference"
    DEFERRED = "deferred"
    VALUES = "values"
    COUNTED = "counted"


_SINGLE: Final = frozenset({SegmentKind.CONTROL, SegmentKind.HOST, SegmentKind.VALUES, SegmentKind.COUNTED})
"""The kinds whose segments have one node."""
CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
"""The operators whose bodies are compiled."""


@dataclass(frozen=True, slots=True)
class GraphSegment:
    """Nodes of one kind, in execution order, with their non-constant inputs from outside and their outputs."""

    kind: SegmentKind
    nodes: tuple[Node, ...]
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]


def segments_of(model: Model, decisions: CpuDecisions) -> list[GraphSegment]:
    """The segments of a model in execution order; their number is reduced greedily."""
    nodes = [n for n in model.ordered_nodes() if not isinstance(n, (Parameter, Constant, Result))]
    kinds = {node: kind_of(node, decisions) for node in nodes}
    return [
        segment
        for kind, group in _drained(nodes, kinds)
        for segment in ([_segment(kind, [n]) for n in group] if kind in _SINGLE else [_segment(kind, group)])
    ]


def kind_of(node: Node, decisions: CpuDecisions) -> SegmentKind:
    """How a node runs, from the types known before an inference."""
    if node.op_type in CONTROL_FLOW and not node.domain:
        return SegmentKind.CONTROL
    read = [value for value in node.input_values if value is not None]
    if not all(isinstance(value.type, TensorType) for value in (*read, *node.outputs)):
        return SegmentKind.HOST
    if node.bodies:  # its evaluation supports dynamic shapes
        return SegmentKind.HOST
    if any(not value.shape.is_static for value in read):
        return SegmentKind.DEFERRED
    if decisions.refusal(node) is not None:
        return SegmentKind.HOST
    if late_values(node, decisions):
        return SegmentKind.VALUES
    if isinstance(decisions[node].lowering, CountedLowering):
        return SegmentKind.COUNTED
    if any(not value.shape.is_static for value in node.outputs):
        return SegmentKind.HOST
    return SegmentKind.NATIVE


def late_values(node: Node, decisions: CpuDecisions) -> tuple[int, ...]:
    """The inputs for whose values a plan of `node` is made, and which only an inference knows."""
    decision = decisions[node]
    return decision.lowering.late_values(decision.spec)


def _drained(nodes: Sequence[Node], kinds: dict[Node, SegmentKind]) -> Iterable[tuple[SegmentKind, list[Node]]]:
    """Group nodes by kind: take ready nodes of one kind until there are none, then those of another."""
    known = kinds.keys()
    waiting = {n: len({v.node for v in n.input_values if v is not None and v.node in known}) for n in nodes}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for source in {v.node for v in node.input_values if v is not None and v.node in known}:
            readers.setdefault(source, []).append(node)
    ready: dict[SegmentKind, deque[Node]] = {kind: deque() for kind in SegmentKind}
    for node in nodes:
        if not waiting[node]:
            ready[kinds[node]].append(node)
    while any(ready.values()):
        for kind in SegmentKind:
            group: list[Node] = []
            while ready[kind]:
                node = ready[kind].popleft()
                group.append(node)
                for reader in readers.get(node, ()):
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        ready[kinds[reader]].append(reader)
            if group:
                yield kind, group


def _segment(kind: SegmentKind, nodes: Sequence[Node]) -> GraphSegment:
    inside = set(nodes)
    inputs = {
        value: None
        for node in nodes
        for value in node.input_values
        if value is not None and value.node not in inside and not isinstance(value.node, Constant)
    }
    outputs = [
        output
        for node in nodes
        for output in node.outputs
        if any(target.node not in inside for target in output.target_inputs)
    ]
    return GraphSegment(kind, tuple(nodes), tuple(inputs), tuple(outputs))


def extract(segment: GraphSegment) -> Model:
    """A segment as a separate model: parameters in the order of its inputs, results in that of its outputs."""
    copies: dict[Output, Output] = {}
    parameters = []
    for index, value in enumerate(segment.inputs):
        parameter = Parameter(value.type, friendly_name=f"input_{index}")
        parameters.append(parameter)
        copies[value] = parameter.output(0)
    for node in segment.nodes:
        for source in node.input_values:
            if source is not None and source not in copies:  # a constant
                copies[source] = source.node.clone_with_new_inputs([]).output(0)
        copy = node.clone_with_new_inputs([None if v is None else copies[v] for v in node.input_values])
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    results = [Result(copies[value], f"output_{index}") for index, value in enumerate(segment.outputs)]
    return Model(results, parameters, name=segment.nodes[-1].friendly_name)
