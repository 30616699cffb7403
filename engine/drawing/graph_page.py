"""A graph as a page to look around in: search, zoom, groups that open and close, and the details of each node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from engine.drawing.colouring import Colouring, colourings
from engine.drawing.graph import Graph, GraphNode
from engine.drawing.page import page, paragraph, script_data
from engine.drawing.table import count, printable

_MAX_CHARACTERS: Final = 200
_MAX_DETAIL_CHARACTERS: Final = 2000
_FRAME: Final = """\
<section class="graph-view">
<div class="graph-tools">
<input id="graph-search" type="search" placeholder="Search name, operator, type (press /)" aria-label="Search nodes">
<label>Colour <select id="graph-colour"></select></label>
<label>Group <select id="graph-group"></select></label>
<span class="graph-buttons"><button id="graph-fit" title="Fit (0)">Fit</button>
<button id="graph-in" aria-label="Zoom in" title="Zoom in (+)">+</button>
<button id="graph-out" aria-label="Zoom out" title="Zoom out (-)">&minus;</button>
<button id="graph-open">Open all</button><button id="graph-close">Close all</button></span>
<label><input id="graph-constants" type="checkbox"> Constants</label>
</div>
<div id="graph-legend" class="graph-legend"></div>
<div class="graph-body">
<canvas id="graph-canvas" tabindex="0" aria-label="The graph. Arrow keys move, + and - zoom, 0 fits, brackets go to the
 node before or after, Enter opens or closes a group."></canvas>
<div id="graph-side" class="graph-side"></div>
</div>
<p id="graph-status" class="faint" role="status"></p>
</section>"""


def to_html(graph: Graph, title: str, *, first: str | None = None, sections: Iterable[str] = ()) -> str:
    """A complete page. `first` is the colouring that it begins with; `sections` are below the graph."""
    return page(
        title,
        [*(paragraph(note) for note in graph.notes), _FRAME, *sections],
        style=_read("graph_page.css"),
        script=f"const GRAPH = {script_data(_data(graph, first))};\n{_read('graph_layout.js')}{_read('graph_page.js')}",
    )


@cache
def _read(name: str) -> str:
    return (files("engine.drawing") / name).read_text(encoding="utf-8")


def _data(graph: Graph, first: str | None) -> str:
    found = colourings(graph)
    names = [each.name for each in found]
    return json.dumps(
        {
            "name": printable(graph.name, _MAX_CHARACTERS),
            "about": count(graph.operation_count, "operation"),
            "nodes": [_node(node) for node in graph.nodes],
            "edges": [[edge.source, edge.target, edge.port, int(edge.is_link)] for edge in graph.edges],
            "colourings": [_colouring(each) for each in found],
            "first": names.index(first) if first in names else 0,
        },
        separators=(",", ":"),
    )


def _node(node: GraphNode) -> dict[str, Any]:
    """The data of a node for the page's script; empty entries are left out."""
    described: dict[str, Any] = {
        "name": printable(node.name, _MAX_CHARACTERS),
        "kind": printable(node.kind, _MAX_CHARACTERS),
        "role": "" if node.role == "operation" else node.role,
        "types": [printable(each, _MAX_CHARACTERS) for each in node.types],
        "scope": [printable(each, _MAX_CHARACTERS) for each in groups_of(node)],
        "body": [printable(each, _MAX_CHARACTERS) for each in node.body],
        "part": printable(node.part, _MAX_CHARACTERS),
        "device": printable(node.device, _MAX_CHARACTERS),
        "ms": node.milliseconds,
        "details": _details(node.details),
    }
    return {key: value for key, value in described.items() if value not in ("", [], None, {})}


def _details(details: Mapping[str, str]) -> dict[str, str]:
    return {printable(key, _MAX_CHARACTERS): printable(text, _MAX_DETAIL_CHARACTERS) for key, text in details.items()}


def _colouring(colouring: Colouring) -> dict[str, Any]:
    index = {label: i for i, label in enumerate(colouring.legend)}
    return {
        "name": colouring.name,
        "legend": [[printable(label, _MAX_CHARACTERS), colour] for label, colour in colouring.legend.items()],
        "nodes": [-1 if label is None else index[label] for label in colouring.labels],
    }


def groups_of(node: GraphNode) -> tuple[str, ...]:
    """The groups around a node: its own, or otherwise those that follow from its name and from the names of the nodes
    whose bodies contain it.
    """
    if node.groups:
        return node.groups
    around: list[str] = []
    for body in node.body:
        owner = body.rpartition(" / ")[0]
        around += [*scope_of(owner), body]
    return (*around, *scope_of(node.name))


def scope_of(name: str) -> tuple[str, ...]:
    """The groups that a name places its node in: "encoder/layer_0/add" is in `encoder`, and there in `layer_0`.

    Names are divided by "/", or by "." if there is none.
    """
    divider = "/" if "/" in name else "."
    return tuple(part for part in name.split(divider)[:-1] if part)
