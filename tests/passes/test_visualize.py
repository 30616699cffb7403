"""Pictures of models: they contain the requested details, are well-formed for all names, and boxes do not overlap."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ops
from engine.drawing.layered_layout import Box, place
from engine.errors import PassError
from engine.ir import Constant, Model, Parameter, boolean, f32
from engine.passes import Manager, VisualizeTree

SVG = "{http://www.w3.org/2000/svg}"


def sample() -> Model:
    x = Parameter(f32, [1, "N"], "x")
    relu = ops.Relu(x, friendly_name="relu")
    split = ops.Split(relu, axis=1, num_outputs=2, friendly_name="halves")
    total = ops.Add(ops.Mul(split.output(0), Constant(0.5)), split.output(1), friendly_name="sum")
    relu.rt_info.update(affinity="CPU", time_ms=1.25, note="hot")
    total.rt_info["affinity"] = "GPU"
    return Model([total], [x], name="sample")


def texts(path: Path) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def draw(model: Model, path: Path, **options: bool) -> list[str]:
    assert VisualizeTree(path, **options).run_on_model(model) is False
    return texts(path)


def test_a_picture_shows_operators_names_types_constants_and_times(tmp_path: Path) -> None:
    shown = draw(sample(), tmp_path / "model.svg")
    for text in ("Relu", "relu", "f32[1,N]", "0.5", "1.250 ms", "sum", "CPU", "GPU"):
        assert text in shown
    assert "note: hot" not in shown
    assert "note: hot" in draw(sample(), tmp_path / "annotated.svg", rt_info=True)


def test_times_of_a_profile_are_shown_by_name(tmp_path: Path) -> None:
    profile = {"relu": 0.5, "sum": 2.0, "gone": 9.0}
    VisualizeTree(tmp_path / "model.svg", times=profile).run_on_model(sample())
    shown = [text for text in texts(tmp_path / "model.svg") if text.endswith(" ms")]
    assert shown == ["0.500 ms", "2.000 ms"], "what was measured goes before what a node remembers"


def test_affinities_have_colours_of_their_own(tmp_path: Path) -> None:
    draw(sample(), tmp_path / "model.svg")
    boxes = {}
    for group in ElementTree.parse(tmp_path / "model.svg").getroot().iter(f"{SVG}g"):
        lines = ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]
        (box,) = group.iter(f"{SVG}rect")
        boxes[lines[0]] = box.get("fill")
    assert boxes["Relu"] == boxes["CPU"]
    assert boxes["Add"] == boxes["GPU"]
    assert len({boxes["CPU"], boxes["GPU"], boxes["Split"]}) == 3


@pytest.mark.parametrize(
    ("shapes", "types", "line"), [("1", "1", "f32[1,N]"), ("1", "0", "[1,N]"), ("0", "1", "f32"), ("0", "0", None)]
)
def test_shapes_and_types_are_switched_by_environment_or_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: str, types: str, line: str | None
) -> None:
    by_option = draw(sample(), tmp_path / "option.svg", shapes=shapes == "1", types=types == "1")
    monkeypatch.setenv("ENGINE_VISUALIZE_TREE_OUTPUT_SHAPES", shapes)
    monkeypatch.setenv("ENGINE_VISUALIZE_TREE_OUTPUT_TYPES", types)
    by_environment = draw(sample(), tmp_path / "environment.svg")
    assert by_environment == by_option
    if line is None:
        assert not any("f32" in text or "[1,N]" in text for text in by_option)
    else:
        assert line in by_option
        assert not any("[1,N]" in text for text in by_option) or shapes == "1"
        assert not any("f32" in text for text in by_option) or types == "1"


def test_bodies_are_drawn_with_their_place(tmp_path: Path) -> None:
    condition, x = Parameter(boolean, [], "condition"), Parameter(f32, [4], "x")
    captures = [Parameter(f32, [4]), Parameter(f32, [4])]
    bodies = [Model([ops.create(op, [c])], captures=[c]) for op, c in zip(("Neg", "Abs"), captures, strict=True)]
    node = ops.If(condition, x, x, then_branch=bodies[0], else_branch=bodies[1], friendly_name="branch")
    model = Model([node], [condition, x], name="outer")
    shown = draw(model, tmp_path / "model.svg")
    for text in ("outer / branch / then_branch", "outer / branch / else_branch", "Neg", "Abs"):
        assert text in shown
    VisualizeTree(tmp_path / "model.dot").run_on_model(model)
    dot = (tmp_path / "model.dot").read_text()
    assert dot.count("subgraph") == 2
    assert dot.count("{") == dot.count("}")


def test_dot_says_which_output_an_edge_leaves(tmp_path: Path) -> None:
    VisualizeTree(tmp_path / "model.dot").run_on_model(sample())
    dot = (tmp_path / "model.dot").read_text()
    ids = {kind: key for key, kind in re.findall(r'(n\d+) \[label="(\w+)', dot)}
    assert f'{ids["Split"]} -> {ids["Add"]} [taillabel="1"]' in dot
    assert f"{ids['Parameter']} -> {ids['Relu']};" in dot


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1))
def test_any_name_makes_a_well_formed_document(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("picture")
    x = Parameter(f32, [1], "x")
    node = ops.Relu(x, friendly_name=name)
    node.rt_info["affinity"] = name
    model = Model([node], [x], name=name)
    draw(model, folder / "model.svg")
    VisualizeTree(folder / "model.dot").run_on_model(model)
    for label in re.findall(r'label="((?:[^"\\]|\\.)*)"', (folder / "model.dot").read_text(encoding="utf-8")):
        assert "\n" not in label


def test_a_picture_before_and_after_is_two_passes(tmp_path: Path) -> None:
    manager = Manager()
    for name in ("before", "after"):
        manager.register_pass(VisualizeTree(tmp_path / f"{name}.svg"))
    assert not manager.run_passes(sample())
    assert texts(tmp_path / "before.svg") == texts(tmp_path / "after.svg")


def test_unknown_formats_and_unwritable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PassError, match=r"VisualizeTree: expected a path ending with \.html, \.svg or \.dot, got 'model\.png'"
    ):
        VisualizeTree(tmp_path / "model.png")
    with pytest.raises(PassError, match=r"VisualizeTree cannot write .*missing"):
        VisualizeTree(tmp_path / "missing" / "model.svg").run_on_model(sample())


# -- the layout -------------------------------------------------------------------------------------------


@st.composite
def drawings(draw: Callable[..., int]) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 25))  # type: ignore[call-arg]
    sizes = [(float(draw(st.integers(10, 200))), float(draw(st.integers(10, 60)))) for _ in range(count)]  # type: ignore
    edges = []
    for target in range(1, count):
        sources = draw(st.lists(st.integers(0, target - 1), max_size=3))  # type: ignore[call-arg]
        edges += [(source, target) for source in sources]  # type: ignore[attr-defined]
    return sizes, edges


@settings(max_examples=150, deadline=None)
@given(drawings())
def test_boxes_do_not_overlap_and_edges_point_down(
    drawing: tuple[list[tuple[float, float]], list[tuple[int, int]]],
) -> None:
    sizes, edges = drawing
    boxes = place(sizes, edges)
    assert [(b.width, b.height) for b in boxes] == sizes
    for source, target in edges:
        assert boxes[source].y + boxes[source].height < boxes[target].y
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert apart(a, b)
    assert all(b.x >= 0 and b.y >= 0 for b in boxes)


def apart(a: Box, b: Box) -> bool:
    return a.x + a.width < b.x or b.x + b.width < a.x or a.y + a.height < b.y or b.y + b.height < a.y


def test_a_node_stands_below_the_middle_of_what_it_reads() -> None:
    wide, narrow, below = place([(100.0, 20.0), (60.0, 20.0), (40.0, 20.0)], [(0, 2), (1, 2)])
    assert below.x + 20 == (wide.x + 50 + narrow.x + 30) / 2


def test_a_large_graph_is_laid_out_in_linear_steps() -> None:
    # Would take minutes if a sweep were quadratic in the nodes of a layer.
    count = 20_000
    boxes = place([(50.0, 20.0)] * count, [(i // 2, i) for i in range(2, count)])
    assert len(boxes) == count
