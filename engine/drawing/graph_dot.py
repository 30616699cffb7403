"""A graph in Graphviz's language; bodies and subgraphs are clusters."""

from __future__ import annotations

from engine.drawing.colouring import Colouring
from engine.drawing.graph import Graph
from engine.drawing.table import printable

_MAX_CHARACTERS = 240


def to_dot(graph: Graph, colouring: Colouring) -> str:
    """The graph as a `digraph`. Nodes are `n0`, `n1` and so on, by position."""
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];',
    ]
    clusters: dict[tuple[str, ...], list[int]] = {}
    for position, node in enumerate(graph.nodes):
        clusters.setdefault(((node.part,) if node.part else ()) + node.body, []).append(position)
    _write(graph, colouring, clusters, (), lines)
    for edge in graph.edges:
        attributes = []
        if edge.is_link:
            attributes.append("style=dotted")
        elif len(graph.nodes[edge.source].types) > 1:
            attributes.append(f'taillabel="{edge.port}"')
        suffix = f" [{', '.join(attributes)}]" if attributes else ""
        lines.append(f"  n{edge.source} -> n{edge.target}{suffix};")
    return "\n".join([*lines, "}", ""])


def _write(
    graph: Graph,
    colouring: Colouring,
    clusters: dict[tuple[str, ...], list[int]],
    path: tuple[str, ...],
    lines: list[str],
) -> None:
    """The nodes of one cluster, and the clusters in it."""
    indent = "  " * (len(path) + 1)
    for position in clusters.get(path, ()):
        label = r"\n".join(map(_escaped, graph.nodes[position].lines))
        lines.append(f'{indent}n{position} [label="{label}", fillcolor="{colouring.colour(position)}"];')
    inner = dict.fromkeys(
        each[: len(path) + 1] for each in clusters if len(each) > len(path) and each[: len(path)] == path
    )
    for each in inner:
        lines.append(f"{indent}subgraph {_quoted('cluster_' + '/'.join(each))} {{")
        lines.append(f"{indent}  label={_quoted(each[-1])};")
        _write(graph, colouring, clusters, each, lines)
        lines.append(f"{indent}}}")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Text within quotes. A backslash is doubled, or `\\N` in a name would stand for the node's."""
    return printable(text, _MAX_CHARACTERS).replace("\\", "\\\\").replace('"', '\\"')
