"""The graph in the picture of a placement: a box for each subgraph, and an edge for the values between two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, log2, sqrt

from engine.drawing.layered_layout import Box, place
from engine.drawing.svg import CHARACTER_WIDTH, LINE_HEIGHT, MAX_CHARACTERS, text, tooltip
from engine.drawing.table import count, duration
from engine.placement.report import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport
from engine.placement.text import operator_summary, transfer_size
from engine.startup import dataclass

_MAX_OPERATIONS = 400
"""A picture with more operations shows only their subgraphs."""
_MAX_LABELS = 200
_MAX_IN_TOOLTIP = 40
_PADDING = 6
_OPERATION_CHARACTERS = 26
_OPERATION_WIDTH = _OPERATION_CHARACTERS * CHARACTER_WIDTH + 4
_MIN_ROWS = 8
_LANE_GAP = 14
_WIDEST = 10.0
_ARROW_LENGTH = 10
# The arrow's size does not depend on the edge's width; it begins where the edge ends, or the edge would cover its tip.
_ARROW = (
    f'<defs><marker id="b" viewBox="0 0 8 8" refX="0" refY="4" markerUnits="userSpaceOnUse" '
    f'markerWidth="{_ARROW_LENGTH}" markerHeight="16" preserveAspectRatio="none" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>'
)
_HALO = 'fill="#fff" stroke="#fff" stroke-width="3"'
_BORDERS = {"user": 'stroke="#222" stroke-width="2.5"', "atom": 'stroke="#222" stroke-dasharray="3 2"'}


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """SVG elements, their extent, and whether they show operations."""

    parts: list[str]
    width: float
    bottom: float
    has_operations: bool


def draw_graph(report: PlacementReport, colours: Mapping[str, str], top: float) -> DrawnGraph:
    """Draw subgraphs below `top`, producers above consumers. Near-linear in subgraphs, operations and crossings."""
    is_detailed = report.node_count <= _MAX_OPERATIONS
    painter = _Painter(report, colours, is_detailed)
    position = {subgraph.index: i for i, subgraph in enumerate(report.subgraphs)}
    bundles: dict[tuple[int, int], list[Crossing]] = {
        (position[other], i): [] for i, subgraph in enumerate(report.subgraphs) for other in subgraph.depends_on
    }
    for crossing in report.crossings:
        bundles[position[crossing.source], position[crossing.target]].append(crossing)
    placed = place([painter.size(subgraph) for subgraph in report.subgraphs], list(bundles))
    boxes = [Box(box.x, box.y + top, box.width, box.height) for box in placed]
    edges, labels, width = _edges(boxes, bundles)
    shapes = [painter.draw(subgraph, box) for subgraph, box in zip(report.subgraphs, boxes, strict=True)]
    bottom = max((box.y + box.height for box in boxes), default=top)
    return DrawnGraph([_ARROW, *edges, *shapes, *labels], width, bottom, is_detailed and bool(report.subgraphs))


class _Painter:
    """Draws subgraphs, with their operations unless there are too many."""

    def __init__(self, report: PlacementReport, colours: Mapping[str, str], is_detailed: bool) -> None:
        self._colours = colours
        self._is_detailed = is_detailed
        self._sources = report.sources
        self._refusals = defaultdict[str, list[NodeRefusal]](list)
        for refusal in report.refusals:
            self._refusals[refusal.node].append(refusal)

    def size(self, subgraph: PlacedSubgraph) -> tuple[float, float]:
        """Width and height of a subgraph's box."""
        lines = self._lines(subgraph)
        width = max(min(len(line), MAX_CHARACTERS) for line in lines) * CHARACTER_WIDTH
        height = len(lines) * LINE_HEIGHT + 2 * _PADDING
        if self._is_detailed:
            rows, columns = _grid(len(subgraph.nodes))
            width, height = max(width, columns * (_OPERATION_WIDTH + 4)), height + rows * LINE_HEIGHT + _PADDING
        return width + 2 * _PADDING, height

    def draw(self, subgraph: PlacedSubgraph, box: Box) -> str:
        """The element of a subgraph in its box."""
        colour = self._colours[subgraph.device]
        lines = self._lines(subgraph)
        names = [*subgraph.nodes[:_MAX_IN_TOOLTIP], *(["..."] if len(subgraph.nodes) > _MAX_IN_TOOLTIP else [])]
        parts = [
            tooltip([*lines, *names]),
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="5" '
            f'fill="{colour}" fill-opacity="{0.3 if self._is_detailed else 1}" stroke="#444"/>',
        ]
        y = box.y + _PADDING
        for i, line in enumerate(lines):
            y += LINE_HEIGHT
            parts.append(text(box.x + _PADDING, y - 4, line, 'font-weight="bold"' if i == 0 else ""))
        if self._is_detailed:
            parts += self._operations(subgraph, box.x + _PADDING, y + _PADDING, colour)
        return f"<g>{''.join(parts)}</g>"

    def _lines(self, subgraph: PlacedSubgraph) -> list[str]:
        evaluated = sum(self._is_evaluated(name, subgraph.device) for name in subgraph.nodes)
        note = f", {evaluated} evaluated on the host" if evaluated else ""
        times = [
            f"{duration(seconds)} {what}"
            for seconds, what in ((subgraph.predicted_seconds, "predicted"), (subgraph.measured_seconds, "measured"))
            if seconds is not None
        ]
        operators = [] if self._is_detailed else [operator_summary(subgraph)]
        lines = [f"{subgraph.index}: {subgraph.device}", f"{count(len(subgraph.nodes), 'operation')}{note}", *operators]
        return [line for line in [*lines, ", ".join(times)] if line]

    def _operations(self, subgraph: PlacedSubgraph, x: float, y: float, colour: str) -> Iterator[str]:
        rows, _ = _grid(len(subgraph.nodes))
        op_types = subgraph.op_types or ("",) * len(subgraph.nodes)
        for i, (name, op_type) in enumerate(zip(subgraph.nodes, op_types, strict=True)):
            left, upper = x + i // rows * (_OPERATION_WIDTH + 4), y + i % rows * LINE_HEIGHT
            source = self._sources.get(name, "")
            reasons = [f"{r.device}: {r.level}, {r.cause}: {r.reason}" for r in self._refusals[name]]
            style = 'font-style="italic"' if self._is_evaluated(name, subgraph.device) else ""
            yield (
                f"<g>{tooltip([f'{op_type} {name}'.strip(), f'placed by {source}', *reasons])}"
                f'<rect x="{left:.0f}" y="{upper:.0f}" width="{_OPERATION_WIDTH:.0f}" height="{LINE_HEIGHT - 2:.0f}" '
                f'rx="2" fill="{colour}" {_BORDERS.get(source, "")}/>'
                f"{text(left + 3, upper + 11, f'{op_type} {name}'.strip(), style, _OPERATION_CHARACTERS)}</g>"
            )

    def _is_evaluated(self, name: str, device: str) -> bool:
        refusals = self._refusals.get(name, ())
        return any(refusal.device == device and refusal.level == "reference" for refusal in refusals)


def _grid(number: int) -> tuple[int, int]:
    """Rows and columns for a number of operations, in column order; about as high as wide."""
    rows = min(number, max(_MIN_ROWS, ceil(sqrt(number * _OPERATION_WIDTH / LINE_HEIGHT))))
    return rows, ceil(number / rows) if rows else 0


def _edges(
    boxes: Sequence[Box], bundles: Mapping[tuple[int, int], Sequence[Crossing]]
) -> tuple[list[str], list[str], float]:
    """Edges, labels of the largest, and the width of boxes and edges."""
    largest = sorted(bundles, key=lambda pair: -_bytes(bundles[pair]))[:_MAX_LABELS]
    labelled = {pair for pair in largest if bundles[pair]}
    router = _Router(boxes)
    shapes, labels = [], []
    for pair in sorted(bundles, key=lambda pair: (boxes[pair[0]].y, pair)):
        crossings = bundles[pair]
        path, x, y = router.route(*pair)
        size = transfer_size(crossings) if crossings else "depends on"
        stroke = f'stroke="#555" stroke-opacity="0.75" stroke-width="{_stroke_width(crossings):.1f}"'
        dashes = "" if crossings and all(c.byte_size is not None for c in crossings) else ' stroke-dasharray="6 4"'
        about = tooltip([size, *(f"{crossing.value}: {transfer_size([crossing])}" for crossing in crossings)])
        shapes.append(f'<path d="{path}" fill="none" {stroke}{dashes} marker-end="url(#b)">{about}</path>')
        if pair in labelled:
            labels += [text(x, y, size, _HALO), text(x, y, size, 'fill="#222"')]
    return shapes, labels, router.width


def _bytes(crossings: Iterable[Crossing]) -> int:
    return sum(crossing.byte_size or 0 for crossing in crossings)


def _stroke_width(crossings: Sequence[Crossing]) -> float:
    """1 up to a kilobyte, 6 for a megabyte."""
    return min(_WIDEST, 1 + log2(1 + _bytes(crossings) / 1024) / 2)


class _Router:
    """Paths of edges: a curve to the next layer; a lane beside the boxes if the edge skips layers.

    As a straight line, an edge that skips layers would be hidden behind the boxes of a chain.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        self._row = {y: row for row, y in enumerate(sorted({box.y for box in boxes}))}
        self._lanes: list[float] = []
        self._right = max((box.x + box.width for box in boxes), default=0.0)
        self.width = self._right + 10 * CHARACTER_WIDTH

    def route(self, source: int, target: int) -> tuple[str, float, float]:
        """The path of an edge, and the position of its label; edges must be routed from top to bottom."""
        upper, lower = self._boxes[source], self._boxes[target]
        first, last = self._row[upper.y], self._row[lower.y]
        if last - first <= 1:
            x1, y1 = upper.x + upper.width / 2, upper.y + upper.height
            x2, y2 = lower.x + lower.width / 2, lower.y - _ARROW_LENGTH
            bend = (y2 - y1) / 2
            path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
            return path, (x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4
        x1, y1 = upper.x + upper.width, upper.y + upper.height / 2
        x2, y2 = lower.x + lower.width + _ARROW_LENGTH, lower.y + lower.height / 2
        x = self._right + _ARROW_LENGTH + _LANE_GAP * (1 + self._lane(y1, y2))
        self.width = max(self.width, x + 10 * CHARACTER_WIDTH)
        return f"M{x1:.0f} {y1:.0f}H{x - 8:.0f}q8 0 8 8V{y2 - 8:.0f}q0 8 -8 8H{x2:.0f}", x + 4, (y1 + y2) / 2

    def _lane(self, top: float, bottom: float) -> int:
        """The first lane that is free from `top` on."""
        for lane, end in enumerate(self._lanes):
            if end < top:
                self._lanes[lane] = bottom
                return lane
        self._lanes.append(bottom)
        return len(self._lanes) - 1
