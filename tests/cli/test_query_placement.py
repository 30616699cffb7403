"""`engine query` of a device that runs on others: how it divides a model, why, and a picture of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.testing.behaviour.cases import make_model, tensor
from tests.browser import needs_browser, open_page

Engine = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model; the devices of `composite_device` are installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    info = tmp_path / "site" / "composite_device-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: composite-device\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[engine.plugins]\nSPLIT = composite_device:SplitPlugin\nPICKY = composite_device:PickyPlugin\n"
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Softmax", ["a"], ["b"], name="softmax"),
        helper.make_node("Mul", ["a", "b"], ["y"], name="product"),
    ]
    model = make_model(nodes, [tensor("x", [4, 250])], [tensor("y", [4, 250])], name="gate")
    onnx.save(model, tmp_path / "gate.onnx")
    return tmp_path


def test_why_prints_subgraphs_totals_reasons_and_findings(engine: Engine, folder: Path) -> None:
    done = engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", "--why", cwd=folder)
    assert (done.code, done.err) == (0, "")
    for line in (
        "placement of `gate` over PICKY, TEMPLATE: 3 operations in 3 subgraphs",
        "       1  TEMPLATE      1  Softmax     4.0 kB   4.0 kB    1.00 ms         -  0",
        "subgraphs       3; lower bound 2: no partition has fewer than 2",
        "bytes crossing  12.0 kB in 3 transfers",
        "predicted time  serial 3.00 ms; from default costs, for comparison only",
        "measured time   none: --config PLACEMENT=measured measures them",
        "  PICKY refuses 1 Softmax (op), now on TEMPLATE",
        "    PICKY runs Relu and Mul; put the rest elsewhere",
        "  moving `softmax` to TEMPLATE costs 2.00 ms more than it gains",
    ):
        assert line in done.out.splitlines()
    complete = engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", "--why", "--nodes", cwd=folder).out
    assert "    `softmax`: PICKY runs Relu and Mul; put the rest elsewhere" in complete.splitlines()
    assert "placement" not in engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", cwd=folder).out


def test_json_has_the_report(engine: Engine, folder: Path) -> None:
    found = json.loads(engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", "--json", cwd=folder).out)
    assert [s["nodes"] for s in found["placement"]["subgraphs"]] == [["relu"], ["softmax"], ["product"]]
    assert found["placement"]["devices"] == ["PICKY", "TEMPLATE"]
    assert "placement" not in json.loads(engine("query", "gate.onnx", "-d", "TEMPLATE", "--json", cwd=folder).out)


@pytest.mark.parametrize("name", ["picture.svg", "picture.html"])
def test_a_picture_is_written(engine: Engine, folder: Path, name: str) -> None:
    done = engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", "--picture", name, cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"wrote {name}\n")
    written = (folder / name).read_text(encoding="utf-8")
    for text in ("Softmax softmax", "PICKY", "4.0 kB"):
        assert text in written
    if name.endswith(".svg"):
        ElementTree.fromstring(written)
    assert sorted(file.name for file in folder.iterdir()) == sorted(["gate.onnx", "site", name])


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_begins_with_the_graph(engine: Engine, folder: Path, width: int) -> None:
    engine("query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE", "--picture", "picture.html", cwd=folder)
    script = """graphView.show(2);
    return [document.getElementById("graph-side").textContent, document.querySelectorAll(".paper svg").length]"""
    page = (folder / "picture.html").read_text(encoding="utf-8")
    side, pictures = open_page(page, folder, script=script, width=width).value  # type: ignore[misc]
    for text in ("softmax", "1: TEMPLATE", "PICKY runs Relu and Mul"):
        assert text in side
    assert pictures == 1


@pytest.mark.parametrize(
    ("device", "picture", "code", "words"),
    [
        ("TEMPLATE", "picture.svg", 2, "TEMPLATE runs the model itself"),
        ("SPLIT:PICKY,TEMPLATE", "picture.png", 2, "must end with .svg or .html"),
        ("SPLIT:PICKY,TEMPLATE", ".svg", 2, "must end with .svg or .html"),
        ("SPLIT:PICKY,TEMPLATE", "nowhere/picture.svg", 2, "does not exist"),
        ("SPLIT:PICKY,TEMPLATE", "folder.svg", 3, "folder.svg"),
    ],
)
def test_a_picture_that_cannot_be_is_refused(
    engine: Engine, folder: Path, device: str, picture: str, code: int, words: str
) -> None:
    (folder / "folder.svg").mkdir()
    done = engine("query", "gate.onnx", "-d", device, "--picture", picture, cwd=folder)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert sorted(file.name for file in folder.iterdir()) == ["folder.svg", "gate.onnx", "site"]


def test_what_no_device_runs_is_told_instead_of_a_placement(engine: Engine, folder: Path) -> None:
    done = engine("query", "gate.onnx", "-d", "SPLIT:PICKY", "--why", "--picture", "picture.svg", cwd=folder)
    assert done.code == 1
    assert "refused: Softmax `softmax` (placement): none of the devices runs it; list another one" in done.out
    assert "no picture: SPLIT:PICKY cannot place a model with refused nodes" in done.err
    assert not (folder / "picture.svg").exists()


def test_what_if_counts_other_queries_and_names_the_nodes_that_change(engine: Engine, folder: Path) -> None:
    common = ["query", "gate.onnx", "-d", "SPLIT:PICKY,TEMPLATE"]
    done = engine(*common, "--what-if", "SPLIT:TEMPLATE,PICKY", "--what-if", "TEMPLATE PERF_COUNT=true", cwd=folder)
    assert (done.code, done.err) == (0, "")
    for line in (
        "WHAT IF                   NATIVE  REFERENCE  REFUSED  PARTS  PASSED ON  PREDICTED",
        "SPLIT:PICKY,TEMPLATE           3          0        0  3      12.0 kB    3.00 ms",
        "TEMPLATE PERF_COUNT=true       3          0        0  -      -          -",
        "SPLIT:TEMPLATE,PICKY: 2 nodes would run otherwise",
        "  relu     native on PICKY  ->  native on TEMPLATE",
    ):
        assert line in done.out.splitlines()
    found = json.loads(engine(*common, "--what-if", "TEMPLATE", "--json", cwd=folder).out)["what_if"]
    (other,) = found
    assert (other["changes"], other["native"], other["subgraphs"]) == ("TEMPLATE", 3, None)
    assert other["nodes"][0] == {"node": "relu", "before": "native on PICKY", "after": "native on TEMPLATE"}


def test_what_if_a_pass_did_not_run(engine: Engine, tmp_path: Path) -> None:
    """The pass makes a product of quantized operands one of 8-bit integers; without it, their real values are used."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], "dequantize"),
        helper.make_node("DequantizeLinear", ["w", "scale", "weights_zero"], ["weights"], "weights"),
        helper.make_node("MatMul", ["d", "weights"], ["y"], "product"),
    ]
    values = {"scale": np.float32(0.1), "zero": np.uint8(3), "weights_zero": np.int8(0), "w": np.ones((8, 8), np.int8)}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "quantized", [tensor("x", [4, 8])], [tensor("y", [4, 8])], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "model.onnx")
    done = engine("query", tmp_path / "model.onnx", "-d", "CPU", "--what-if", "without:QuantizedFusion")
    assert (done.code, done.err) == (0, "")
    assert "  product     native on CPU in u8  ->  native on CPU in f32" in done.out.splitlines()
    assert "ENGINE_PASSES_WITHOUT" not in os.environ


@pytest.mark.parametrize(
    ("changes", "code", "problem"),
    [
        ("CPU TEMPLATE", 2, "expected at most one DEVICE, KEY=VALUE, without:PASS; got 'CPU TEMPLATE'"),
        ("", 2, "expected at most one DEVICE"),
        ("without:", 2, "expected at most one DEVICE"),
        ("'CPU", 2, "No closing quotation in"),
        ("NO_KEY=1", 3, "NO_KEY"),
        ("ABSENT", 3, "ABSENT"),
        ("without:GeluFussion", 3, "GeluFusion"),
    ],
)
def test_what_if_says_what_is_wrong_with_the_changes(
    engine: Engine, folder: Path, changes: str, code: int, problem: str
) -> None:
    done = engine("query", "gate.onnx", "-d", "TEMPLATE", "--what-if", changes, cwd=folder)
    assert done.code == code
    assert problem in done.err


def test_what_if_prints_the_others_when_one_is_wrong(engine: Engine, folder: Path) -> None:
    wrong = ("--what-if", "without:GeluFussion", "--what-if", "PERF_COUNT=true")
    done = engine("query", "gate.onnx", "-d", "TEMPLATE", *wrong, cwd=folder)
    assert done.code == 3
    assert "PERF_COUNT=true: 0 nodes would run otherwise" in done.out
    assert done.err.startswith("engine query: --what-if 'without:GeluFussion': ")
    found = json.loads(engine("query", "gate.onnx", "-d", "TEMPLATE", *wrong, "--json", cwd=folder).out)
    assert [each["changes"] for each in found["what_if"]] == ["PERF_COUNT=true"]
    assert list(found["what_if_errors"]) == ["without:GeluFussion"]
