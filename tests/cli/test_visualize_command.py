"""`engine visualize`: pictures of models and blobs, with devices and times; nothing half-written after an error."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

from engine.cli.commands.visualize import EXAMPLES
from tests.browser import needs_browser, open_page

Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Path:
    """A folder with `model.onnx`, which has groups, and `model.blob`."""
    folder = tmp_path_factory.mktemp("visualize")
    names = [f"net/block.{b}/{part}" for b in range(3) for part in ("act", "gate")]
    nodes = [
        helper.make_node(("Relu", "Softmax")[i % 2], [names[i - 1] if i else "x"], [name], name=name)
        for i, name in enumerate(names)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x", names[-1])]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    (folder / "basic.blob").write_bytes((files / "basic.blob").read_bytes())
    return folder


@pytest.fixture(scope="module")
def with_blob(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "compile", "model.onnx", "-d", "CPU"], cwd=folder, check=False
    )
    assert done.returncode == 0
    return folder


@pytest.mark.parametrize("example", EXAMPLES.splitlines())
def test_every_example_works(engine: Engine, with_blob: Path, example: str) -> None:
    program, *arguments = shlex.split(example, comments=True)
    assert program == "engine"
    target = with_blob / arguments[arguments.index("-o") + 1]
    target.unlink(missing_ok=True)
    done = engine(*arguments, cwd=with_blob)
    assert (done.code, done.err) == (0, "")
    assert "blocks" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert target.stat().st_size > 500


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_shows_devices_and_times(engine: Engine, folder: Path, tmp_path: Path, width: int) -> None:
    target = tmp_path / "graph.html"
    done = engine("visualize", "model.onnx", "-d", "HETERO:TEMPLATE,CPU", "--profile", "-o", target, cwd=folder)
    assert (done.code, done.err) == (0, "")
    script = """graphView.show(2);
    return [document.getElementById("graph-legend").textContent, document.getElementById("graph-side").textContent]"""
    legend, side = open_page(target.read_text(encoding="utf-8"), tmp_path, script=script, width=width).value  # type: ignore
    assert "%" in legend
    for text in ("net/block.0/gate", "Softmax", "f32[2,8]", "0: TEMPLATE", "placed by", "time"):
        assert text in side


def test_a_picture_has_the_colours_asked_for(engine: Engine, folder: Path, tmp_path: Path) -> None:
    found = []
    for colour in ("operator", "precision"):
        target = tmp_path / f"{colour}.svg"
        assert engine("visualize", "model.onnx", "--colour", colour, "-o", target, cwd=folder).code == 0
        ElementTree.parse(target)
        found.append(set(re.findall(r'fill="(#\w+)"', target.read_text(encoding="utf-8"))))
    assert found[0] != found[1]


def test_times_of_nodes_without_names(engine: Engine, tmp_path: Path) -> None:
    """Their generated names must be the same in the graph and in the profile."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "unnamed", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "unnamed.onnx")
    done = engine("visualize", "unnamed.onnx", "-d", "CPU", "--profile", "-o", "x.svg", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert re.search(r">[\d.]+ ms<", (tmp_path / "x.svg").read_text(encoding="utf-8"))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_times_of_bodies(engine: Engine, tmp_path: Path, device: str) -> None:
    """Profiles name what runs in a body after its node."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], ["b"], name=op.lower())],
            name,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, [8])],
        )
        for name, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])
    nodes = [helper.make_node("If", ["c"], ["y"], name="branch", **branches)]
    graph = helper.make_graph(nodes, "bodies", [condition, value], [result])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "bodies.onnx"
    )
    done = engine("visualize", "bodies.onnx", "-d", device, "--profile", "-o", "x.dot", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    labels = re.findall(r'label="((?:If|Exp|Neg)\\n[^"]*)"', (tmp_path / "x.dot").read_text(encoding="utf-8"))
    timed = {label.split("\\n")[0] for label in labels if label.endswith(" ms")}
    assert "If" in timed
    assert len(timed & {"Exp", "Neg"}) == (1 if device == "CPU" else 0), "TEMPLATE has no records of bodies"


def test_facts_for_programs(engine: Engine, folder: Path, tmp_path: Path) -> None:
    done = engine("visualize", "model.onnx", "-o", tmp_path / "x.dot", "--json", cwd=folder)
    facts = json.loads(done.out)
    assert (facts["graph"], facts["operations"], facts["nodes"], facts["edges"]) == ("blocks", 6, 8, 7)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("model.onnx -o graph.png", 2, "must end with .html, .svg or .dot"),
        ("model.onnx -o graph", 2, "must end with .html, .svg or .dot"),
        ("model.onnx -o nowhere/graph.svg", 2, "does not exist"),
        ("model.onnx -o folder.svg", 3, "folder.svg"),
        ("model.onnx", 2, "-o"),
        ("nowhere.onnx -o graph.svg", 3, "nowhere.onnx"),
        ("model.onnx -o graph.svg --profile", 2, "-d DEVICE"),
        ("model.onnx -o graph.svg --compiled", 2, "-d DEVICE"),
        ("model.onnx -o graph.svg --colour time", 2, "no time to colour by"),
        ("model.onnx -o graph.svg --colour device", 2, "it has operator, precision"),
        ("model.onnx -o graph.svg -d NO_SUCH", 3, "NO_SUCH"),
    ],
)
def test_what_cannot_be_is_refused(engine: Engine, folder: Path, arguments: str, code: int, words: str) -> None:
    (folder / "folder.svg").mkdir(exist_ok=True)
    before = sorted(folder.iterdir())
    done = engine("visualize", *arguments.split(), cwd=folder)
    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
    assert sorted(folder.iterdir()) == before, "a file was left over"


def test_a_blob_without_a_graph_says_so(
    engine: Engine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    info = tmp_path / "site" / "bare_device-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bare-device\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[engine.plugins]\nBARE = composite_device:BarePlugin\n")
    assert engine("compile", folder / "model.onnx", "-d", "BARE", "-o", "bare.blob", cwd=tmp_path).code == 0
    done = engine("visualize", "bare.blob", "-o", "graph.html", cwd=tmp_path)
    assert done.code == 3
    assert done.err == (
        "engine visualize: error: network `blocks` on BARE has no graph that could be drawn; draw the model instead\n"
    )
    assert not (tmp_path / "graph.html").exists()


@pytest.mark.parametrize("name", ["graph.html", "graph.svg", "graph.dot"])
def test_a_full_disk_leaves_the_old_picture(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    command = f"ulimit -f 1; exec {sys.executable} -B -m engine visualize {folder}/model.onnx -o {name}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode == 0:  # it fits into the limit of one block
        assert (tmp_path / name).stat().st_size <= 1024
        return
    assert done.returncode == 3
    assert re.fullmatch(r"engine visualize: error: .*File too large.*\n", done.stderr)
    assert (tmp_path / name).read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [name]
