"""Cuts a graph into parts that run one after the other: plans of native kernels, host steps, and what must wait.

A node waits (DEFERRED) where the shape of something it reads becomes known only during an inference; the parts of it
are made then, from the shapes that came.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.ir import Constant, Model, Node, Output, Parameter, Result, TensorType
from engine_cpu.lowering import CpuDecisions


class PartKind(enum.Enum):
    """How a part runs."""

    NATIVE = "native"
    HOST = "reference"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class GraphPart:
    """Nodes of one kind, in an order in which they can run; what they read from outside, constants aside, and give."""

    kind: PartKind
    nodes: tuple[Node, ...]
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]


def partition(model: Model, decisions: CpuDecisions) -> list[GraphPart]:
    """The parts of a model, as few as one pass finds, in the order in which they run."""
    nodes = [n for n in model.ordered_nodes() if not isinstance(n, (Parameter, Constant, Result))]
    kinds = {node: kind_of(node, decisions) for node in nodes}
    return [
        part
        for kind, group in _drained(nodes, kinds)
        for part in ([_part(kind, [n]) for n in group] if kind is PartKind.HOST else [_part(kind, group)])
    ]


def kind_of(node: Node, decisions: CpuDecisions) -> PartKind:
    """How a node runs; types are as well known as they can be before an inference."""
    read = [value for value in node.input_values if value is not None]
    if not all(isinstance(value.type, TensorType) for value in (*read, *node.outputs)):
        return PartKind.HOST
    if node.bodies:  # whose evaluation takes all shapes as they come
        return PartKind.HOST
    if any(not value.shape.is_static for value in read):
        return PartKind.DEFERRED
    if any(not value.shape.is_static for value in node.outputs) or decisions.refusal(node) is not None:
        return PartKind.HOST
    return PartKind.NATIVE


def _drained(nodes: Sequence[Node], kinds: dict[Node, PartKind]) -> Iterable[tuple[PartKind, list[Node]]]:
    """Runs of one kind: one kind's ready nodes are taken until there are none, then another's."""
    known = kinds.keys()
    waiting = {n: len({v.node for v in n.input_values if v is not None and v.node in known}) for n in nodes}
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for source in {v.node for v in node.input_values if v is not None and v.node in known}:
            readers.setdefault(source, []).append(node)
    ready: dict[PartKind, deque[Node]] = {kind: deque() for kind in PartKind}
    for node in nodes:
        if not waiting[node]:
            ready[kinds[node]].append(node)
    while any(ready.values()):
        for kind in PartKind:
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


def _part(kind: PartKind, nodes: Sequence[Node]) -> GraphPart:
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
    return GraphPart(kind, tuple(nodes), tuple(inputs), tuple(outputs))


def extract(part: GraphPart) -> Model:
    """A part as a model of its own: parameters in the order of its inputs, results in that of its outputs."""
    copies: dict[Output, Output] = {}
    parameters = []
    for index, value in enumerate(part.inputs):
        parameter = Parameter(value.type, friendly_name=f"input_{index}")
        parameters.append(parameter)
        copies[value] = parameter.output(0)
    for node in part.nodes:
        for source in node.input_values:
            if source is not None and source not in copies:  # a constant
                copies[source] = source.node.clone_with_new_inputs([]).output(0)
        copy = node.clone_with_new_inputs([None if v is None else copies[v] for v in node.input_values])
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    results = [Result(copies[value], f"output_{index}") for index, value in enumerate(part.outputs)]
    return Model(results, parameters, name=part.nodes[-1].friendly_name)
