"""A placement report as a picture: subgraphs coloured by device, and edges whose width shows the bytes transferred."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from engine.drawing.colouring import colourings
from engine.drawing.graph import Graph
from engine.drawing.graph_dot import to_dot
from engine.drawing.graph_page import to_html as graph_page
from engine.drawing.page import page, section
from engine.drawing.svg import CHARACTER_WIDTH, LINE_HEIGHT, document, legend, legend_width, palette, text
from engine.drawing.table import byte_count, count, duration, printable
from engine.files import write_file
from engine.placement.graph import placed_graph
from engine.placement.picture_graph import draw_graph
from engine.placement.report import PlacementReport
from engine.placement.text import placement_text

SUFFIXES: Final = (".svg", ".html", ".dot")

_MAX_LINE_CHARACTERS = 240
_MAX_FINDINGS = 10
_MARGIN = 24
_KEY = (
    "inside a box: its operations; thick border: placed by the user; dashed border: placed with its atom; "
    "italics: evaluated on the host"
)


def write_picture(
    report: PlacementReport, path: str | os.PathLike[str], model: str, graph: Graph | None = None
) -> None:
    """Write a picture of a report of `model` to a file, atomically.

    `graph` is the model's, as `engine.visualize.model_graph` makes it: a page then also shows it, with the device and
    the subgraph of each operation; a dot file needs it.

    Raises `ValueError` if the path does not end with one of `SUFFIXES`, or a dot file has no graph; `OSError` if it
    cannot be written.
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: a picture is a file whose name ends with {' or '.join(SUFFIXES)}")
    if suffix == ".dot":
        if graph is None:
            raise ValueError(f"{os.fspath(path)}: a dot file shows the model's graph; pass it, or write .svg or .html")
        placed = placed_graph(graph, report)
        picture = to_dot(placed, colourings(placed)[0])
    else:
        picture = to_html(report, model, graph) if suffix == ".html" else to_svg(report, model)
    write_file(path, picture.encode("utf-8", "backslashreplace"))


def to_svg(report: PlacementReport, model: str) -> str:
    """The picture as a self-contained SVG document. Operations are shown if there are at most a few hundred."""
    colours = palette(report.devices)
    y = float(_MARGIN)
    parts, widths = [], [200.0, legend_width(colours)]
    for line, attributes in _heading(report, model):
        parts.append(text(_MARGIN, y, line, attributes, _MAX_LINE_CHARACTERS))
        widths.append(min(len(line), _MAX_LINE_CHARACTERS) * CHARACTER_WIDTH + 2 * _MARGIN)
        y += LINE_HEIGHT
    parts += legend(colours, y)
    graph = draw_graph(report, colours, y + 2 * LINE_HEIGHT)
    if graph.has_operations:
        parts.append(text(_MARGIN, y + 2 * LINE_HEIGHT, _KEY, 'fill="#555"', _MAX_LINE_CHARACTERS))
        widths.append(len(_KEY) * CHARACTER_WIDTH + 2 * _MARGIN)
    return document(max(*widths, graph.width), graph.bottom + _MARGIN, [*parts, *graph.parts])


def to_html(report: PlacementReport, model: str, graph: Graph | None = None) -> str:
    """The picture and the complete report as text, as a self-contained HTML document, with the graph if given."""
    picture = f'<div class="paper">{to_svg(report, model)}</div>'
    complete = f"<pre>{escape(placement_text(report, model, is_complete=True))}</pre>"
    title = f"Placement of {printable(model)}"
    sections = [section("Subgraphs", picture), section("Report", complete)]
    return page(title, sections) if graph is None else graph_page(placed_graph(graph, report), title, sections=sections)


def _heading(report: PlacementReport, model: str) -> Iterator[tuple[str, str]]:
    """The lines and the SVG attributes of each."""
    yield f"placement of `{printable(model)}` over {', '.join(report.devices)}", 'font-weight="bold"'
    yield (
        f"{count(report.node_count, 'operation')} in {count(len(report.subgraphs), 'subgraph')}; lower bound "
        f"{report.lower_bound}; {byte_count(report.crossing_bytes)} crossing in "
        f"{count(len(report.crossings), 'transfer')}",
        "",
    )
    times = [f"{mode}: {duration(seconds)} predicted" for mode, seconds in report.predicted_seconds.items()]
    if report.measured_seconds is not None:
        times.append(f"{duration(report.measured_seconds)} measured")
    yield "; ".join([f"strategy {report.strategy}, mode {report.mode}, placement {report.placement}", *times]), ""
    for finding in report.findings[:_MAX_FINDINGS]:
        yield finding, 'fill="#b00020"'
    if (rest := len(report.findings) - _MAX_FINDINGS) > 0:
        yield f"and {rest} more findings", 'fill="#b00020"'
