"""A placement shown on the graph of the model: each operation with its device, its subgraph, and why it is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field, replace

from engine.drawing.graph import Graph, GraphNode
from engine.drawing.table import byte_count, count
from engine.placement.report import PlacementReport
from engine.startup import dataclass

ON_HOST = "evaluated on the host"
ANYWHERE = "computed wherever needed"


@dataclass(frozen=True, slots=True)
class Mark:
    """The marks of an operation: device, subgraph, and details to show when it is selected."""

    device: str
    part: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


def placed_graph(graph: Graph, report: PlacementReport) -> Graph:
    """`graph` with the devices and subgraphs of a report on its model. Linear in nodes and edges."""
    reasons: defaultdict[str, dict[str, str]] = defaultdict(dict)
    evaluated = set()
    for refusal in report.refusals:
        reasons[refusal.node][f"not native on {refusal.device}"] = f"{refusal.level}, {refusal.cause}: {refusal.reason}"
        if refusal.level == "reference":
            evaluated.add((refusal.node, refusal.device))
    marks = {name: Mark(ANYWHERE) for name in report.cloned}
    for subgraph in report.subgraphs:
        for name in subgraph.nodes:
            device = f"{subgraph.device}, {ON_HOST}" if (name, subgraph.device) in evaluated else subgraph.device
            placed = {"placed by": source} if (source := report.sources.get(name)) else {}
            marks[name] = Mark(device, f"{subgraph.index}: {subgraph.device}", placed | reasons[name])
    summary = (
        f"{count(report.node_count, 'operation')} in {count(len(report.subgraphs), 'subgraph')} on "
        f"{', '.join(report.devices)}; {byte_count(report.crossing_bytes)} cross in "
        f"{count(len(report.crossings), 'transfer')}"
    )
    return replace(marked_graph(graph, marks), notes=(*graph.notes, summary))


def marked_graph(graph: Graph, marks: Mapping[str, Mark]) -> Graph:
    """`graph` with the marks of operations, by name. A body runs where its node does; a constant where it is read."""
    nodes = list(graph.nodes)
    for position, node in enumerate(nodes):
        owner = node.body[0].rpartition(" / ")[0] if node.body else node.name
        mark = marks.get(owner)
        if mark is not None and (node.role == "operation" or node.body):
            nodes[position] = _marked(node, mark)
    for edge in graph.edges:
        source, reader = nodes[edge.source], nodes[edge.target]
        if source.role == "constant" and reader.part and not source.part:
            nodes[edge.source] = replace(source, part=reader.part)
    return replace(graph, nodes=tuple(nodes))


def _marked(node: GraphNode, mark: Mark) -> GraphNode:
    details = {**node.details, **mark.details} if not node.body else node.details
    return replace(node, device=mark.device, part=mark.part, details=details)
