"""Pictures of graphs: what they hold, that no name breaks them, and that the page works in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawing.colouring import colourings
from engine.drawing.graph import Graph, GraphEdge, GraphNode
from engine.drawing.graph_dot import to_dot
from engine.drawing.graph_page import scope_of, to_html
from engine.drawing.graph_svg import to_svg
from tests.browser import needs_browser, open_page

HOSTILE = '</script><script>throw 1</script>"\\N{}\n<b>&'
_DOT = shutil.which("dot")


def node(name: str, kind: str = "Relu", **fields: object) -> GraphNode:
    return GraphNode(name, kind, lines=(kind, name), types=("f32[4]",), **fields)  # type: ignore[arg-type]


def blocks(count: int = 3) -> Graph:
    """A chain of blocks of three nodes, each in a group `block.N`, with an edge around the middle one; two devices."""
    nodes = [GraphNode("x", "Parameter", "input", ("Parameter", "x"), ("f32[4]",))]
    edges: list[GraphEdge] = []
    for b in range(count):
        device = ("GPU", "CPU")[b % 2]
        first = len(nodes)
        for i, kind in enumerate(("Relu", "Exp", "Add")):
            part = f"{b}: {device}"
            nodes.append(
                node(f"block.{b}/{kind.lower()}", kind, device=device, part=part, precision="f32", milliseconds=b + i)
            )
        edges += [GraphEdge(first - 1, first), GraphEdge(first, first + 1), GraphEdge(first + 1, first + 2)]
        edges.append(GraphEdge(first, first + 2))
    return Graph("blocks", tuple(nodes), tuple(edges))


def test_colours_mean_what_there_is_data_for() -> None:
    found = {each.name: each for each in colourings(blocks())}
    assert list(found) == ["device", "time", "operator", "precision"]
    assert list(found["device"].legend) == ["GPU", "CPU", "input"]
    assert found["device"].labels[:5] == ("input", "GPU", "GPU", "GPU", "CPU")
    assert found["device"].colour(1) == found["device"].colour(7) != found["device"].colour(4)
    plain = Graph("plain", (node("a"), node("b", "Exp")), ())
    assert [each.name for each in colourings(plain)] == ["operator"]


def test_white_is_in_the_legend() -> None:
    graph = Graph(
        "some", (node("a", device="CPU", precision="f32"), node("b"), node("c", "Constant", role="constant")), ()
    )
    found = {each.name: each for each in colourings(graph)}
    for name, label in (("device", "no device stated"), ("precision", "no tensor")):
        assert found[name].labels == (found[name].labels[0], label, "constant")
        assert found[name].legend[label] == found[name].colour(1) == "#ffffff"


def test_times_are_coloured_by_their_share() -> None:
    times = (74.0, 15.0, 8.0, 3.0, 0.0, None)
    graph = Graph("timed", tuple(node(f"n{i}", milliseconds=ms) for i, ms in enumerate(times)), ())
    by_time = next(each for each in colourings(graph) if each.name == "time")
    assert by_time.labels == (
        "20 % or more of the time", "10 to 20 %", "5 to 10 %", "2 to 5 %", "less than 2 %", "not measured",
    )  # fmt: skip


def test_rare_operators_share_a_colour() -> None:
    """Eight colours are told apart; a ninth would look like the first."""
    kinds = [f"Op{i}" for i in range(20) for _ in range(20 - i)]
    (by_operator,) = colourings(Graph("many", tuple(node(f"n{i}", kind) for i, kind in enumerate(kinds)), ()))
    assert list(by_operator.legend)[:2] == ["Op0", "Op1"]
    assert "other operators" in by_operator.legend
    assert len(set(by_operator.legend.values())) == len(by_operator.legend) <= 8


@pytest.mark.parametrize(
    ("name", "groups"),
    [("a/b.c/d", ("a", "b.c")), ("a.b.c", ("a", "b")), ("/a/b", ("a",)), ("a", ()), ("", ()), ("a//b", ("a",))],
)
def test_groups_are_the_parts_of_names(name: str, groups: tuple[str, ...]) -> None:
    assert scope_of(name) == groups


# -- files ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1), st.text())
def test_any_name_makes_well_formed_files(name: str, device: str) -> None:
    graph = Graph(name, (node(name, name, device=device, part=device, body=(name,)), node("b")), (GraphEdge(0, 1),))
    colouring = colourings(graph)[0]
    ElementTree.fromstring(to_svg(graph, colouring).encode("utf-8", "replace"))
    for line in to_dot(graph, colouring).splitlines():
        assert re.sub(r'"(?:[^"\\]|\\.)*"', "", line).count('"') == 0, line


@pytest.mark.skipif(_DOT is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("graph", [blocks(), Graph(HOSTILE, (node(HOSTILE, HOSTILE, part=HOSTILE),), ())], ids=str)
def test_graphviz_reads_dot(graph: Graph) -> None:
    text = to_dot(graph, colourings(graph)[0])
    done = subprocess.run([str(_DOT), "-Tplain"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split()[0] for line in done.stdout.splitlines()]
    assert lines.count("node") == len(graph.nodes)
    assert lines.count("edge") == len(graph.edges)


# -- the page ---------------------------------------------------------------------------------------------

SHOWN = "const names = () => graphView.state.shown.map((b) => b.children ? b.name : nodesOf(b)); "
SHOWN += "const nodesOf = (b) => b.node.name; "


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_shows_every_node_and_fits(tmp_path: Path, width: int) -> None:
    opened = open_page(to_html(blocks(), "Blocks"), tmp_path, width=width, script=SHOWN + "return names()")
    assert isinstance(opened.value, list)
    assert sorted(opened.value) == sorted(each.name for each in blocks().nodes)


@needs_browser
def test_boxes_do_not_overlap_and_edges_go_down(tmp_path: Path) -> None:
    script = """
    const boxes = graphView.state.shown, apart = (a, b) =>
      a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
    const overlaps = boxes.filter((a, i) => boxes.slice(0, i).some((b) => !apart(a, b))).length;
    const rises = (points) => points.some((p, i) => i && p[1] < points[i - 1][1] - 1e-6);
    const up = graphView.state.lines.filter((line) => rises(line.points)).length;
    const outside = graphView.state.frames.filter((f) => f.children.some((c) =>
      c.x < f.x || c.y < f.y || c.x + c.w > f.x + f.w + 1e-6 || c.y + c.h > f.y + f.h + 1e-6)).length;
    return [overlaps, up, outside, graphView.state.lines.length]"""
    assert open_page(to_html(blocks(12), "Blocks"), tmp_path, script=script).value == [0, 0, 0, 48]


@needs_browser
def test_edges_enter_and_leave_an_opened_group_above_and_below_its_boxes(tmp_path: Path) -> None:
    """In the row of a tall box, an edge seemed to begin behind it, at the border of the group."""
    names = ["a", "loop", "body0", "body1", "body2", "b", "other"]
    around = {"body0": ("loop / body",), "body1": ("loop / body",), "body2": ("loop / body",)}
    parts = dict.fromkeys(names, "0: CPU") | {"other": "1: GPU", "b": "1: GPU"}
    nodes = tuple(node(name, body=around.get(name, ()), part=parts[name]) for name in names)
    edges = [(0, 1), (2, 3), (3, 4), (1, 5), (0, 5), (5, 6)]
    linked = GraphEdge(1, 2, is_link=True)
    graph = Graph("looped", nodes, (*(GraphEdge(*edge) for edge in edges), linked))
    script = """
    const found = [];
    for (const frame of graphView.state.frames) for (const port of frame.ports.values()) {
      const tops = frame.children.map((c) => c.y), ends = frame.children.map((c) => c.y + c.h);
      found.push(port.pin < 0 ? port.y <= Math.min(...tops) : port.y >= Math.max(...ends));
    }
    const sources = graphView.state.lines.every((line) => line.points[0][1] === line.from.y + line.from.h);
    return [found.length, found.every(Boolean), sources, graphView.state.frames.length]"""
    count, *rest = open_page(to_html(graph, "Looped"), tmp_path, script=script).value  # type: ignore[misc]
    assert count >= 4
    assert rest == [True, True, 3]


@needs_browser
def test_an_edge_from_out_of_sight_has_the_name_of_its_source_where_it_enters_a_group(tmp_path: Path) -> None:
    script = """
    const { state, draw } = graphView, before = state.named.slice();
    const frame = state.frames.find((f) => f.name === "2: GPU");
    state.scale = 1; state.x = 0; state.y = 10 - frame.y;
    draw();
    return [before, state.named]"""
    opened = open_page(to_html(blocks(), "Blocks"), tmp_path, script=script)
    assert opened.value == [[], ["block.1/add"]], "the last node of the group before"


@needs_browser
def test_groups_open_and_close(tmp_path: Path) -> None:
    script = (
        SHOWN
        + """
    const group = document.getElementById("graph-group");
    group.value = "names"; group.onchange();
    document.getElementById("graph-close").click();
    const closed = names(), edges = graphView.state.lines.length;
    graphView.toggle(graphView.state.shown.find((b) => b.name === "block.1"));
    return [closed, edges, names(), document.getElementById("graph-side").textContent]"""
    )
    closed, edges, opened, side = open_page(to_html(blocks(), "Blocks"), tmp_path, script=script).value  # type: ignore
    assert closed == ["x", "block.0", "block.1", "block.2"]
    assert edges == 3, "one edge between two groups, however many values pass"
    assert opened == ["x", "block.0", "block.1/relu", "block.1/exp", "block.1/add", "block.2"]
    assert "nodes3" in side


@needs_browser
def test_search_finds_names_operators_and_types(tmp_path: Path) -> None:
    script = (
        SHOWN
        + """
    const search = document.getElementById("graph-search"), found = [];
    for (const text of ["exp", "block.1 f32", "CPU", "nothing here"]) {
      search.value = text; search.oninput();
      found.push(graphView.state.found.length);
    }
    search.value = "block.2/exp"; search.oninput();
    document.getElementById("graph-close").click();
    search.onkeydown({ key: "Enter" });
    return [found, graphView.state.selected.node.name, document.getElementById("graph-side").textContent]"""
    )
    found, selected, side = open_page(to_html(blocks(), "Blocks"), tmp_path, script=script).value  # type: ignore
    assert found == [3, 3, 3, 0]
    assert selected == "block.2/exp", "in a closed group"
    for text in ("Exp", "f32[4]", "GPU", "2: GPU", "3.00 ms", "Inputs", "block.2/relu", "Readers"):
        assert text in side


@needs_browser
def test_colours_and_legend_change(tmp_path: Path) -> None:
    script = """
    const colour = document.getElementById("graph-colour"), legends = [];
    for (const option of colour.options) {
      colour.value = option.value; colour.onchange();
      legends.push([option.text, document.getElementById("graph-legend").textContent]);
    }
    return legends"""
    legends = dict(open_page(to_html(blocks(), "Blocks", first="time"), tmp_path, script=script).value)  # type: ignore
    assert legends["device"] == "GPUCPUinput"
    assert "10 to 20 %" in legends["time"]
    assert legends["operator"] == "AddExpReluinput"
    assert legends["precision"] == "f32input"


@needs_browser
def test_the_keyboard_suffices(tmp_path: Path) -> None:
    script = """
    const canvas = document.getElementById("graph-canvas"), press = (key) => canvas.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    const { x, scale } = graphView.state;
    press("ArrowLeft"); press("+");
    const moved = graphView.state.x !== x && graphView.state.scale > scale;
    press("/");
    const focused = document.activeElement.id;
    graphView.show(1); press("]");
    const after = graphView.state.selected.node.name;
    press("["); press("Escape");
    return [moved, focused, after, graphView.state.selected]"""
    opened = open_page(to_html(blocks(), "Blocks"), tmp_path, script=script)
    assert opened.value == [True, "graph-search", "block.0/exp", None]


@needs_browser
def test_a_cycle_between_groups_is_drawn(tmp_path: Path) -> None:
    """Groups are not subgraphs: values may go from one to another and back."""
    names = ["a/1", "b/1", "a/2", "b/2", "a/3"]
    graph = Graph("cycle", tuple(map(node, names)), tuple(GraphEdge(i, i + 1) for i in range(4)))
    script = """document.getElementById("graph-close").click();
    return [graphView.state.shown.length, graphView.state.lines.length]"""
    assert open_page(to_html(graph, "Cycle"), tmp_path, script=script).value == [2, 2]


@needs_browser
def test_bodies_are_groups_and_constants_are_hidden_at_first(tmp_path: Path) -> None:
    nodes = (
        GraphNode("w", "Constant", "constant", ("Constant",), ("f32[4]",), details={"value": "[1, 2, 3, 4]"}),
        node("m/loop", "Loop"),
        node("m/loop/step", "Add", body=("m/loop / body",)),
        node("m/loop/next", "Exp", body=("m/loop / body",)),
    )
    graph = Graph("bodies", nodes, (GraphEdge(0, 1), GraphEdge(1, 2, is_link=True), GraphEdge(2, 3)))
    script = (
        SHOWN
        + """
    const before = names();
    document.getElementById("graph-close").click();
    const closed = names();
    graphView.show(0);
    return [before, closed, names().includes("w"), document.getElementById("graph-side").textContent]"""
    )
    before, closed, has_constant, side = open_page(to_html(graph, "Bodies"), tmp_path, script=script).value  # type: ignore
    assert before == ["m/loop", "m/loop/step", "m/loop/next"]
    assert closed == ["m"]
    assert has_constant
    assert "[1, 2, 3, 4]" in side


@needs_browser
def test_no_name_gets_out_of_its_place(tmp_path: Path) -> None:
    fields = {"device": HOSTILE, "part": HOSTILE, "body": (f"{HOSTILE} / body",), "details": {HOSTILE: HOSTILE}}
    graph = Graph(HOSTILE, (node(HOSTILE, HOSTILE, **fields), node("b")), (GraphEdge(0, 1),), (HOSTILE,))
    opened = open_page(
        to_html(graph, HOSTILE),
        tmp_path,
        script="graphView.show(0); return document.querySelectorAll('.graph-side b, .graph-side script').length",
    )
    assert opened.value == 0


@needs_browser
def test_an_empty_graph_has_a_page(tmp_path: Path) -> None:
    opened = open_page(to_html(Graph("empty", (), ()), "Empty"), tmp_path, script="return graphView.state.shown.length")
    assert opened.value == 0


@needs_browser
def test_five_thousand_nodes_stay_usable(tmp_path: Path) -> None:
    """At first it shows few boxes; all of them can be shown, and only what is in the window is drawn."""
    script = """
    const first = graphView.state.shown.length;
    document.getElementById("graph-open").click();
    const all = graphView.state.shown.length, context = document.getElementById("graph-canvas").getContext("2d");
    let drawn = 0;
    const own = context.strokeRect;
    context.strokeRect = (...box) => { drawn += 1; own.apply(context, box); };
    graphView.state.scale = 1;
    graphView.draw();
    return [first, all, drawn]"""
    first, every, drawn = open_page(to_html(blocks(1700), "Large"), tmp_path, script=script).value  # type: ignore
    assert first <= 1701
    assert every == 5101
    assert 0 < drawn < 100
