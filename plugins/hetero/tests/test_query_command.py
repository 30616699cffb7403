"""`engine query --why` of HETERO, as users call it: it explains real networks, and says what compiling then does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.testing.networks import seeded_network

MOVED = {"resnet50": ("MaxPool", "Gemm"), "bert_base": ("Softmax", "Gelu")}
"""Operators that the tests' users put on the other device."""


def query(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "engine", "query", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.fixture(scope="module", params=MOVED)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, and beside it a file that puts some of its nodes on TEMPLATE."""
    path = tmp_path_factory.mktemp("networks") / f"{request.param}.onnx"
    onnx.save(seeded_network(request.param, small=True).model, path)
    nodes = Core().read_model(path).ordered_nodes()
    moved = {node.friendly_name: "TEMPLATE" for node in nodes if node.op_type in MOVED[request.param]}
    path.with_suffix(".json").write_text(json.dumps(moved))
    return path


def test_a_network_that_fits_the_first_device_is_one_subgraph(network: Path) -> None:
    shown = query(network, "-d", "HETERO:TEMPLATE,CPU", "--why").splitlines()
    assert any(line.startswith(f"placement of `{network.stem}` over TEMPLATE, CPU: ") for line in shown)
    assert "subgraphs       1; lower bound 1: the minimum" in shown
    assert "bytes crossing  0 bytes in 0 transfers" in shown
    assert "every operation runs natively, and no device listed earlier refused one" in shown


def test_what_a_user_moves_is_shown_as_it_is_compiled(network: Path) -> None:
    file = network.with_suffix(".json")
    moved = set(json.loads(file.read_text()))
    common = [network, "-d", "HETERO:CPU,TEMPLATE", "-c", f"AFFINITY_FILE={file}", "-c", "PARTITION_MODE=min_subgraphs"]
    found = json.loads(query(*common, "--json"))
    placement = found["placement"]
    subgraphs = placement["subgraphs"]
    assert {name for s in subgraphs if s["device"] == "TEMPLATE" for name in s["nodes"]} == moved
    assert {name for name, source in placement["sources"].items() if source == "user"} == moved
    operations = [node["name"] for node in found["nodes"]]
    assert sorted([*(name for s in subgraphs for name in s["nodes"]), *placement["cloned"]]) == sorted(operations)

    options: dict[str, Any] = {"AFFINITY_FILE": str(file), "PARTITION_MODE": "min_subgraphs"}
    compiled = Core().compile_model(network, "HETERO:CPU,TEMPLATE", options)
    assert [s["device"] for s in subgraphs] == list(compiled.get_metric("SUBGRAPH_DEVICES"))
    assert placement["lower_bound"] == compiled.get_metric("SUBGRAPH_LOWER_BOUND") == len(subgraphs) > 2

    shown = query(*common, "--why").splitlines()
    assert f"subgraphs       {len(subgraphs)}; lower bound {len(subgraphs)}: the minimum" in shown
    transfers = len(placement["crossings"])
    assert any(line.startswith("bytes crossing") and line.endswith(f"in {transfers} transfers") for line in shown)
    assert any(line.startswith("predicted time  ") and " from default costs" in line for line in shown)
    assert "measured time   none: --config PLACEMENT=measured measures them" in shown


def test_measured_times_are_shown_and_kept(network: Path, tmp_path: Path) -> None:
    """The times measured for the report lead to the same decision when the model is compiled later."""
    file = tmp_path / "calibration.json"
    common = [network, "-d", "HETERO:TEMPLATE,CPU", "-c", "PLACEMENT=measured", "-c", f"CALIBRATION_FILE={file}"]
    placement = json.loads(query(*common, "-c", "MEASURE_SECONDS=20", "--json"))["placement"]
    assert (placement["placement"], placement["costs"] != "default") == ("measured", True)
    assert set(placement["sources"].values()) <= {"measured", "atom"}
    measured = [s["measured_seconds"] for s in placement["subgraphs"] if s["measured_seconds"] is not None]
    assert measured
    assert all(seconds > 0 for seconds in measured)
    shown = query(*common, "-c", "MEASURE_SECONDS=0", "--why").splitlines()
    assert any(line.startswith("measured time   ") and " for the operations of " in line for line in shown)
    options = {"PLACEMENT": "measured", "CALIBRATION_FILE": str(file), "MEASURE_SECONDS": 0.0}
    compiled = Core().compile_model(network, "HETERO:TEMPLATE,CPU", options)
    assert [s["device"] for s in placement["subgraphs"]] == list(compiled.get_metric("SUBGRAPH_DEVICES"))


def test_a_network_is_drawn(network: Path, tmp_path: Path) -> None:
    picture = tmp_path / "placement.svg"
    options = ["-c", f"AFFINITY_FILE={network.with_suffix('.json')}", "--picture", picture]
    shown = query(network, "-d", "HETERO:CPU,TEMPLATE", *options)
    assert shown.endswith(f"wrote {picture}\n")
    texts = {"".join(element.itertext()) for element in ElementTree.parse(picture).getroot().iter()}
    for op_type in MOVED[network.stem]:
        assert any(text.startswith(f"{op_type} ") for text in texts)


def test_reasons_of_the_first_device_are_reported(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Det", ["a"], ["y"], name="where"),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(nodes, "places", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "m.onnx")
    shown = query(tmp_path / "m.onnx", "-d", "HETERO:CPU,TEMPLATE", "--why").splitlines()
    group = shown.index("  CPU evaluates on the host 1 Det (op), now on TEMPLATE")
    assert shown[group + 1 : group + 3] == ["    `where`", "    Det has no kernel on this device"]
    shown = query(tmp_path / "m.onnx", "-d", "HETERO:CPU", "--why").splitlines()
    assert "  CPU evaluates on the host 1 Det (op)" in shown
    assert any(line.split()[:4] == ["CPU", "1", "2", "1"] for line in shown), "one of two nodes by reference"
