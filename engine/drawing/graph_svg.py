"""A graph as a static picture: layered, inputs at the top. Bodies are drawn below the graph that they belong to."""

from __future__ import annotations

from engine.drawing.colouring import Colouring
from engine.drawing.graph import Graph
from engine.drawing.layered_layout import Box, place
from engine.drawing.svg import CHARACTER_WIDTH, LINE_HEIGHT, MAX_CHARACTERS, document, legend, legend_width, text
from engine.drawing.table import printable


def to_svg(graph: Graph, colouring: Colouring) -> str:
    """The graph as an SVG document."""
    parts: list[str] = []
    width, y = 200.0, 0.0
    bodies: dict[tuple[str, ...], list[int]] = {(): []}
    for position, node in enumerate(graph.nodes):
        bodies.setdefault(node.body, []).append(position)
    for path, positions in bodies.items():
        parts.append(text(24, y + 20, " / ".join((graph.name, *path)), 'font-weight="bold"'))
        shapes, body_width, height = _draw(graph, positions, colouring, y)
        parts += shapes
        width, y = max(width, body_width), y + height
    width = max(width, legend_width(colouring.legend))
    return document(width, y + 30, [*parts, *legend(colouring.legend, y)])


def _draw(graph: Graph, positions: list[int], colouring: Colouring, top: float) -> tuple[list[str], float, float]:
    index = {position: i for i, position in enumerate(positions)}
    labels = [[printable(line, MAX_CHARACTERS) for line in graph.nodes[position].lines] for position in positions]
    sizes = [(max(map(len, label)) * CHARACTER_WIDTH + 12, len(label) * LINE_HEIGHT + 8) for label in labels]
    edges = [
        (index[edge.source], index[edge.target])
        for edge in graph.edges
        if edge.source in index and edge.target in index and not edge.is_link
    ]
    boxes = place(sizes, edges)
    parts = [_edge(boxes[a], boxes[b], top) for a, b in edges]
    for position, label, box in zip(positions, labels, boxes, strict=True):
        parts.append(_box(label, box, colouring.colour(position), top))
    width = max((box.x + box.width for box in boxes), default=0) + 24
    height = max((box.y + box.height for box in boxes), default=0) + 24
    return parts, width, height


def _edge(source: Box, target: Box, top: float) -> str:
    x1, y1 = source.x + source.width / 2, source.y + source.height + top
    x2, y2 = target.x + target.width / 2, target.y + top
    bend = (y2 - y1) / 2
    path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#666" marker-end="url(#a)"/>'


def _box(label: list[str], box: Box, colour: str, top: float) -> str:
    rows = "".join(text(box.x + 6, box.y + top + LINE_HEIGHT * (i + 0.9), line) for i, line in enumerate(label))
    return (
        f'<g><rect x="{box.x:.0f}" y="{box.y + top:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="4" '
        f'fill="{colour}" stroke="#444"/>{rows}</g>'
    )
