"""`HETERO_DUMP_GRAPH`: a picture of each compiled model, with the device of each operation; nothing is replaced."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PropertyError
from engine.ir import Model, Parameter, f32
from engine.visualize import network_graph


def model(name: str = "two devices/..") -> Model:
    x = Parameter(f32, [2, 4], "x")
    first = ops.Relu(x, friendly_name="first")
    second = ops.Softmax(first, axis=-1, friendly_name="second")
    second.rt_info["affinity"] = "CPU"
    return Model([second], [x], name=name)


def compile_with(place: object, name: str = "two devices/..") -> None:
    network = Core().compile_model(model(name), "HETERO:TEMPLATE,CPU", {"HETERO_DUMP_GRAPH": str(place)})
    assert np.isfinite(network({"x": np.ones((2, 4), np.float32)})[0]).all()


def test_a_folder_gets_a_dot_file_for_each_model(tmp_path: Path) -> None:
    for _ in range(2):
        compile_with(tmp_path)
    compile_with(tmp_path, "other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.dot", "two_devices-2.dot", "two_devices.dot"]
    text = (tmp_path / "other.dot").read_text(encoding="utf-8")
    assert 'label="0: TEMPLATE"' in text
    assert 'label="1: CPU"' in text
    colours = dict(re.findall(r'label="(\w+)\\n.*fillcolor="(#\w+)"', text))
    assert len({colours["Relu"], colours["Softmax"], colours["Parameter"]}) == 3


@pytest.mark.parametrize("suffix", [".dot", ".svg", ".html"])
def test_a_file_is_written_and_never_replaced(tmp_path: Path, suffix: str) -> None:
    compile_with(tmp_path / f"graph{suffix}")
    first = (tmp_path / f"graph{suffix}").read_bytes()
    compile_with(tmp_path / f"graph{suffix}", "another")
    assert (tmp_path / f"graph{suffix}").read_bytes() == first
    assert b"another" in (tmp_path / f"graph-2{suffix}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
    for name in (b"TEMPLATE", b"CPU", b"first", b"second"):
        assert name in first


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("graph.png", "neither a folder nor a file whose name ends with .html, .svg or .dot"),
        ("nowhere", "neither a folder"),
        ("nowhere/graph.dot", "does not exist"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_compiling(tmp_path: Path, place: str, words: str) -> None:
    with pytest.raises(PropertyError, match=re.escape(words)):
        compile_with(tmp_path / place)
    assert not list(tmp_path.iterdir())


def test_the_compiled_graph_connects_the_subgraphs() -> None:
    """`engine visualize --compiled`: each value that crosses is an edge between two subgraphs."""
    network = Core().compile_model(model(), "HETERO:TEMPLATE,CPU")
    graph = network_graph(network.graph, network.name, network.get_metric("SUBGRAPH_DEVICES"))
    ends = [(graph.nodes[edge.source], graph.nodes[edge.target]) for edge in graph.edges]
    crossing = [(a.part, b.part) for a, b in ends if a.part != b.part]
    assert crossing == [("0: TEMPLATE", "1: CPU")]


def test_a_blob_does_not_draw(tmp_path: Path) -> None:
    """The path belongs to the machine that compiled; a blob must not make another one write files."""
    core = Core()
    network = core.compile_model(model(), "HETERO:TEMPLATE,CPU", {"HETERO_DUMP_GRAPH": str(tmp_path)})
    network.export_model(tmp_path / "net.blob")
    before = sorted(tmp_path.iterdir())
    imported = core.import_model(tmp_path / "net.blob")
    assert imported.get_config("HETERO_DUMP_GRAPH") == ""
    assert sorted(tmp_path.iterdir()) == before
