"""The benchmark of first results: that each way infers what onnxruntime does, or its times would mislead."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))

pytest.importorskip("onnxruntime")

import first_result
from first_result import PEER, ROOT, WAYS, Case, Files, First, measured, times

from engine.testing.networks import SeededNetwork


def files(folder: Path) -> Files:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "relu", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return Files(folder, SeededNetwork(model, {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)}))


CASES = [Case(way, way, ROOT) for way in (PEER, *WAYS)]


def test_each_way_is_measured_from_its_start_to_its_result(tmp_path: Path) -> None:
    found = measured(files(tmp_path), CASES, rounds=1)
    assert list(found) == [PEER, *WAYS]
    assert all(first.seconds > 0 and first.cpu > 0 and first.megabytes > 1 for first in found.values())


def test_a_way_with_other_results_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = first_result._RUN["cold"] + "\nresults = {name: value + 1 for name, value in results.items()}\n"
    monkeypatch.setitem(first_result._RUN, "cold", wrong)
    with pytest.raises(RuntimeError, match="cold and onnxruntime differ by 1"):
        measured(files(tmp_path), CASES[:2], rounds=1)


def test_ratios_are_to_the_peer_in_the_same_run() -> None:
    table = times({"a": {PEER: First(0.2, 0.1, 50), "cold": First(0.4, 0.3, 60)},
                   "b": {PEER: First(0.4, 0.1, 50), "cold": First(0.2, 0.3, 60)}}, [PEER, "cold"])  # fmt: skip
    assert "| a | 0.20 | 0.40 (2.00) |" in table
    assert "| geometric mean of ratios | | 1.00 |" in table
