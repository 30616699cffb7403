"""Users are warned without asking: one `EngineWarning` for each compilation, and the same in EXECUTION_SUMMARY.

If this fails, a model runs a hundred times slower than it could, and nobody knows; or a log is full of repetitions.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core, EngineWarning
from engine.cli.main import main
from engine.core import storing

REFERENCE = r"1 of 3 nodes run on the reference evaluator \(Det\)"
DEVICES = {
    "CPU": rf"^CPU network `g`: {REFERENCE}",
    "HETERO:CPU": rf"^HETERO network `g`: part0 on CPU: {REFERENCE}",
    "AUTO:CPU": rf"^AUTO network `g`: network on CPU: {REFERENCE}",
}


def evaluated() -> onnx.ModelProto:
    """A model with one node for which CPU has no kernel."""
    x = helper.make_tensor_value_info("x", 1, [8, 3, 3])
    y = helper.make_tensor_value_info("y", 1, [8])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Det", ["b"], ["y"], "my_det"),
    ]
    w = helper.make_tensor("w", 1, [3, 3], np.eye(3).ravel() * 2)
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def native() -> onnx.ModelProto:
    model = evaluated()
    del model.graph.node[2:], model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("b", 1, [8, 3, 3]))
    return model


def caught(
    device: str, config: dict[str, Any] | None = None, model: onnx.ModelProto | Path | None = None
) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        network = Core().compile_model(evaluated() if model is None else model, device, config)
    assert all(each.filename == __file__ for each in found), "it points at the line that compiles"
    return network, [str(each.message) for each in found if issubclass(each.category, EngineWarning)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_runs_on_the_reference_evaluator_is_told_once(device: str) -> None:
    network, (message,) = caught(device)
    with pytest.warns(EngineWarning, match=DEVICES[device]):
        raise_again(message)
    inner = innermost(network.get_property("EXECUTION_SUMMARY"))
    assert (inner["nodes"], inner["reference_nodes"], inner["device"]) == (3, 1, "CPU")
    assert inner["fallbacks"][0].startswith("1 of 3 nodes")
    assert 0 < inner["reference_work_share"] < 1
    summary = network.get_property("EXECUTION_SUMMARY")
    assert summary["reference_share"] == pytest.approx(1 / 3)
    assert [message] == [f"{device.partition(':')[0]} network `g`: {summary['fallbacks'][0]}"]
    assert "for `my_det`; `engine query MODEL -d CPU --why` lists them" in message
    assert caught(device, model=native())[1] == []


def raise_again(message: str) -> None:
    warnings.warn(EngineWarning(message), stacklevel=1)


def innermost(summary: Any) -> Any:
    while summary["parts"]:
        (summary,) = summary["parts"].values()
    return summary


def test_the_device_that_evaluates_warns_of_nothing() -> None:
    network, messages = caught("TEMPLATE")
    assert messages == []
    summary = network.get_property("EXECUTION_SUMMARY")
    assert summary["reference_share"] == 1.0
    assert summary["fallbacks"] == ()


def test_nodes_that_wait_for_their_shapes_are_not_reported() -> None:
    """Their rank follows from the branch that is taken; then they run natively."""

    def branch(name: str, op_type: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(op_type, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, 1, None)]
        )

    c, x = helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [1, 3])
    branches = {"then_branch": branch("squeezed", "Squeeze"), "else_branch": branch("negated", "Neg")}
    nodes = [helper.make_node("If", ["c"], ["a"], **branches), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [c, x], [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    network, messages = caught("CPU", model=model)
    assert messages == []
    assert network.get_property("EXECUTION_SUMMARY")["reference_nodes"] == 0
    assert network([np.array(True), np.array([[1, -1, 2]], np.float32)])[0].tolist() == [1, 0, 2]


def test_batches_are_compiled_twice_told_and_counted_once() -> None:
    model = evaluated()
    network, messages = caught("BATCH:CPU(2)", model=model)
    assert len(messages) == 1
    summary = network.get_property("EXECUTION_SUMMARY")
    assert (summary["nodes"], summary["reference_nodes"], len(summary["parts"])) == (3, 1, 2)
    assert messages[0].startswith("BATCH network `g`: full and rest on CPU: 1 of 3 nodes")
    assert messages[0].count("1 of 3 nodes") == len(summary["fallbacks"]) == 1


def test_dictionaries_as_results_are_no_fallback() -> None:
    """ZipMap is how scikit-learn's converters return scores; no kernel could make objects of Python."""
    x = helper.make_tensor_value_info("x", 1, ["N", 2])
    scores = helper.make_node("Softmax", ["x"], ["s"])
    zipped = helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 4])
    item = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    result = helper.make_value_info("y", helper.make_sequence_type_proto(item))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(
        helper.make_graph([scores, zipped], "g", [x], [result]), opset_imports=opsets, ir_version=10
    )
    network, messages = caught("CPU", model=model)
    assert messages == []
    summary = network.get_property("EXECUTION_SUMMARY")
    assert (summary["nodes"], summary["reference_nodes"], summary["fallbacks"]) == (2, 0, ())
    assert network([np.zeros((1, 2), np.float32)])[0] == [{3: 0.5, 4: 0.5}]


@pytest.mark.parametrize("device", DEVICES)
def test_the_summary_survives_export_and_import(device: str) -> None:
    network, _ = caught(device)
    stream = io.BytesIO()
    network.export_model(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was told when it was compiled
        imported = Core().import_model(stream.getvalue())
    assert imported.get_property("EXECUTION_SUMMARY") == network.get_property("EXECUTION_SUMMARY")


def test_a_network_from_the_cache_is_told_of_too(tmp_path: Path) -> None:
    for is_loaded in (False, True):
        network, messages = caught("CPU", {"CACHE_DIR": str(tmp_path)})
        assert network.get_property("LOADED_FROM_CACHE") is is_loaded
        assert len(messages) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_of_a_file_from_the_cache_is_told_of_too(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(storing, "DELAY_SECONDS", 0)
    onnx.save(evaluated(), tmp_path / "model.onnx")
    found = []
    for _ in range(2):
        network, messages = caught(device, model=tmp_path / "model.onnx")
        storing.wait_until_stored()
        assert len(messages) == 1
        found.append((network.loaded_from_cache, messages, network.get_property("EXECUTION_SUMMARY")))
    assert found == [(False, *found[0][1:]), (True, *found[0][1:])]


def test_an_ignored_precision_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_cpu.precision.why_not_bf16", lambda isa, rates: "has no bf16 instructions")
    network, (message,) = caught("CPU", {"INFERENCE_PRECISION_HINT": "bf16"}, native())
    assert "INFERENCE_PRECISION_HINT is bf16, and applies to large weights only: this CPU has no bf16 inst" in message
    summary = network.get_property("EXECUTION_SUMMARY")
    assert summary["precision"] == "f32"
    assert len(summary["fallbacks"]) == 1


def test_a_filter_makes_it_an_error_or_hides_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        with pytest.raises(EngineWarning, match=REFERENCE):
            Core().compile_model(evaluated(), "CPU")
        warnings.simplefilter("ignore", RuntimeWarning)  # its base, as of warnings of AUTO before
        Core().compile_model(evaluated(), "CPU")


def test_commands_print_it_as_a_line(tmp_path: Path) -> None:
    onnx.save(evaluated(), tmp_path / "model.onnx")
    command = [sys.executable, "-m", "engine", "run", str(tmp_path / "model.onnx"), "-d", "CPU", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    (line,) = done.stderr.splitlines()
    assert line.startswith("engine run: warning: CPU network `g`: 1 of 3 nodes run on the reference evaluator")
    assert main(["run", str(tmp_path / "model.onnx"), "-d", "TEMPLATE"]) == 0
