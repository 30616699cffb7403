"""Makes graphs as plain data from the graphs that networks keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.drawing.graph import Graph, GraphEdge, GraphNode
from engine.errors import UnsupportedError
from engine.ir import Model
from engine.visualize.model_graph import GraphOptions, model_graph


def network_graph(graph: object, name: str, devices: Sequence[str], options: GraphOptions | None = None) -> Graph:
    """The graph that a network runs: its `graph`, which is a model, or a sequence of them for one that runs on others.

    `name` is the network's; `devices` has the device of each of the models. Raises `UnsupportedError` if the network
    does not keep a graph.
    """
    models = graph if isinstance(graph, (tuple, list)) else (graph,)
    if not all(isinstance(model, Model) for model in models):
        raise UnsupportedError(
            f"network `{name}` on {', '.join(dict.fromkeys(devices))} has no graph that could be drawn; "
            "draw the model instead"
        )
    graphs = [model_graph(model, options) for model in models]
    if models is not graph:
        placed = [replace(n, device=devices[0]) if n.role == "operation" else n for n in graphs[0].nodes]
        return replace(graphs[0], name=name, nodes=tuple(placed))
    return _joined(graphs, devices, name)


def _joined(graphs: Sequence[Graph], devices: Sequence[str], name: str) -> Graph:
    """One graph of several. A result is connected to the inputs of later parts that have its name."""
    nodes: list[GraphNode] = []
    edges: list[GraphEdge] = []
    results: dict[str, int] = {}
    for number, (graph, device) in enumerate(zip(graphs, devices, strict=True)):
        first = len(nodes)
        nodes += [replace(node, part=f"{number}: {device}", device=device) for node in graph.nodes]
        edges += [replace(e, source=e.source + first, target=e.target + first) for e in graph.edges]
        for position, node in enumerate(graph.nodes, first):
            if node.role == "input" and not node.body and node.name in results:
                edges.append(GraphEdge(results[node.name], position))
        results |= {n.name: i for i, n in enumerate(graph.nodes, first) if n.role == "output" and not n.body}
    return Graph(name, tuple(nodes), tuple(edges))
