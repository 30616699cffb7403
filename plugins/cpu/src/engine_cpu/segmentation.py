"""Cuts a graph into segments that run in sequence, each of one kind: a module of `engine_cpu.segments`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from engine.ir import Constant, Model, Node, Parameter, Result, TensorType
from engine_cpu.lowering import CpuDecisions
from engine_cpu.lowering.counting import CountedLowering
from engine_cpu.segments.control import CONTROL, CONTROL_FLOW
from engine_cpu.segments.counted import COUNTED
from engine_cpu.segments.deferred import DEFERRED
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.host import HOST
from engine_cpu.segments.kind import SegmentKind
from engine_cpu.segments.planned import NATIVE
from engine_cpu.segments.values import VALUES, late_values

KINDS: Final = (NATIVE, CONTROL, HOST, DEFERRED, VALUES, COUNTED)
"""In the order in which nodes that are ready are taken."""


def segments_of(model: Model, decisions: CpuDecisions) -> list[tuple[SegmentKind, GraphSegment]]:
    """The segments of a model in execution order, each with its kind; their number is reduced greedily."""
    nodes = [n for n in model.ordered_nodes() if not isinstance(n, (Parameter, Constant, Result))]
    kinds = {node: kind_of(node, decisions) for node in nodes}
    return [
        (kind, GraphSegment.of(part))
        for kind, group in _drained(nodes, kinds)
        for part in ([[node] for node in group] if kind.has_one_node else [group])
    ]


def kind_of(node: Node, decisions: CpuDecisions) -> SegmentKind:
    """How a node runs, from the types known before an inference."""
    if node.op_type in CONTROL_FLOW and not node.domain:
        return CONTROL
    read = [value for value in node.input_values if value is not None]
    if not all(isinstance(value.type, TensorType) for value in (*read, *node.outputs)):
        return HOST
    if node.bodies:  # its evaluation supports dynamic shapes
        return HOST
    if any(not value.shape.is_static for value in read):
        return DEFERRED
    if decisions.refusal(node) is not None:
        return HOST
    if late_values(node, decisions):
        return VALUES
    if isinstance(decisions[node].lowering, CountedLowering):
        return COUNTED
    if any(not value.shape.is_static for value in node.outputs):
        return HOST
    return NATIVE


def _drained(nodes: Sequence[Node], kinds: dict[Node, SegmentKind]) -> Iterable[tuple[SegmentKind, list[Node]]]:
    """Group nodes by kind: take ready nodes of one kind until there are none, then nodes of another."""
    known = kinds.keys()
    waiting = {n: len({v.node for v in n.input_values if v is not None and v.node in known}) for n in nodes}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for source in {v.node for v in node.input_values if v is not None and v.node in known}:
            readers.setdefault(source, []).append(node)
    ready: dict[SegmentKind, deque[Node]] = {kind: deque() for kind in KINDS}
    for node in nodes:
        if not waiting[node]:
            ready[kinds[node]].append(node)
    while any(ready.values()):
        for kind in KINDS:
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
