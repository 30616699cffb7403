"""A graph as plain data, from which all pictures of graphs are drawn: dot, SVG, and a page to look around in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from engine.startup import dataclass

Role: TypeAlias = Literal["operation", "input", "output", "constant"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node.

    Attributes:
        name: the text that searches find; it need not be unique.
        groups: the groups around it, outermost first; if there are none, they are taken from its name and `body`.
        kind: the operator.
        lines: what a static picture shows in the box, the operator first.
        types: of the outputs, as text.
        precision: the element type that it computes in.
        body: for a node in the body of another: the bodies around it, outermost first, each as "node / attribute".
        device: where it runs; empty if that is not known.
        part: the subgraph that it runs in, such as "0: CPU"; empty without subgraphs.
        milliseconds: how long it runs; None if that was not measured.
        details: attributes and annotations to show for a selected node, by name.
    """

    name: str
    kind: str
    role: Role = "operation"
    lines: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    precision: str = ""
    body: tuple[str, ...] = ()
    device: str = ""
    part: str = ""
    milliseconds: float | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge between two nodes, by their positions: the value of output `port` of `source`.

    With `is_link`, no value flows: `target` belongs to a body of `source`.
    """

    source: int
    target: int
    port: int = 0
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run, edges, each to a later node, and sentences about the graph."""

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    notes: tuple[str, ...] = ()

    @property
    def operation_count(self) -> int:
        """The number of nodes that are operations."""
        return sum(node.role == "operation" for node in self.nodes)
