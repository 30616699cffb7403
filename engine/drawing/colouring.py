"""The meaning of the colours of a graph's nodes: devices, times, precisions or operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from engine.drawing.graph import Graph, GraphNode
from engine.drawing.svg import palette
from engine.startup import dataclass

PLAIN: Final = "#ffffff"
"""The colour of a node without one."""
_ROLES: Final = {"input": "#dff0df", "output": "#f4dede", "constant": "#ececec"}
_SHARES: Final = (
    (0.2, "20 % or more of the time", "#e4572e"),
    (0.1, "10 to 20 %", "#f18f4f"),
    (0.05, "5 to 10 %", "#f7b267"),
    (0.02, "2 to 5 %", "#fbd38d"),
    (0.0, "less than 2 %", "#fdf0d5"),
)
_NOT_MEASURED: Final = "not measured"
_NO_DEVICE: Final = "no device stated"
_NO_PRECISION: Final = "no tensor"
_OTHERS: Final = "other operators"
_MAX_OPERATORS: Final = 7
"""The operators with a colour of their own: the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Colouring:
    """One meaning of the colours.

    Attributes:
        name: "device", "time", "precision" or "operator".
        legend: the colour of each label, white included.
        labels: the label of each node, in the order of the graph; None for an input, output or constant without one.
    """

    name: str
    legend: dict[str, str]
    labels: tuple[str | None, ...]

    def colour(self, node: int) -> str:
        """The colour of the node at position `node`; a plain one if it has no label."""
        label = self.labels[node]
        return PLAIN if label is None else self.legend[label]


def colourings(graph: Graph) -> list[Colouring]:
    """The colourings for which the graph has data; the first is by device, or by operator without devices."""
    found = []
    if any(node.device for node in graph.nodes):
        found.append(_by("device", graph, lambda node: node.device, _NO_DEVICE))
    if any(node.milliseconds is not None for node in graph.nodes):
        found.append(_by_time(graph))
    found.append(_by_operator(graph))
    if any(node.precision for node in graph.nodes):
        found.append(_by("precision", graph, lambda node: node.precision, _NO_PRECISION))
    return found


def _by(name: str, graph: Graph, label: Callable[[GraphNode], str], without: str) -> Colouring:
    """A colour for each label; `without` is the label of operations that have none, which are white."""
    labels = [label(node) or without if node.role == "operation" else None for node in graph.nodes]
    # Devices have the same colours whether or not an operation in no subgraph comes first.
    in_parts = [label for label, node in zip(labels, graph.nodes, strict=True) if node.part]
    legend = palette(each for each in (*in_parts, *labels) if each not in (None, without))
    return _with_roles(name, graph, legend | ({without: PLAIN} if without in labels else {}), labels)


def _by_operator(graph: Graph) -> Colouring:
    counts = Counter(node.kind for node in graph.nodes if node.role == "operation")
    frequent = [kind for kind, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if len(frequent) > _MAX_OPERATORS + 1:
        frequent = [*frequent[:_MAX_OPERATORS], _OTHERS]
    legend = palette(frequent)
    labels = [
        (node.kind if node.kind in legend else _OTHERS) if node.role == "operation" else None for node in graph.nodes
    ]
    return _with_roles("operator", graph, legend, labels)


def _by_time(graph: Graph) -> Colouring:
    total = sum(node.milliseconds or 0.0 for node in graph.nodes) or 1.0

    def label(node: GraphNode) -> str | None:
        if node.role != "operation":
            return None
        if node.milliseconds is None:
            return _NOT_MEASURED
        return next(text for least, text, _ in _SHARES if (node.milliseconds or 0.0) / total >= least)

    labels = [label(node) for node in graph.nodes]
    legend = {text: colour for _, text, colour in _SHARES} | {_NOT_MEASURED: PLAIN}
    return _with_roles("time", graph, {text: legend[text] for text in legend if text in labels}, labels)


def _with_roles(name: str, graph: Graph, legend: dict[str, str], labels: list[str | None]) -> Colouring:
    """The colouring with the colours of inputs, outputs and constants."""
    roles = {node.role for node in graph.nodes}
    marked = tuple(node.role if node.role in _ROLES else label for node, label in zip(graph.nodes, labels, strict=True))
    return Colouring(name, legend | {role: colour for role, colour in _ROLES.items() if role in roles}, marked)
