"""`engine query --memory`: the memory of a network, on each of its devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine.testing.behaviour.cases import make_model, tensor

Engine = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of a product, for any number of rows."""
    weights = {"w": np.ones((250, 250), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    onnx.save(
        make_model(nodes, [tensor("x", ["N", 250])], [tensor("y", ["N", 250])], weights), tmp_path / "product.onnx"
    )
    return tmp_path


def test_table_has_a_row_for_each_network(engine: Engine, folder: Path) -> None:
    done = engine("query", "product.onnx", "-d", "HETERO:TEMPLATE", "--memory", "--shape", "x=4,250", cwd=folder)
    assert (done.code, done.err) == (0, "")
    head, whole, part = done.out.splitlines()[-3:]
    sizes = "WEIGHTS MAPPED ARENA SCRATCH STATES INPUTS OUTPUTS PEAK"
    assert head.split() == f"MEMORY DEVICE STREAMS {sizes}".split(" ")
    assert whole.split()[:5] == ["network", "TEMPLATE", "1", "250.0", "kB"]
    assert part.split()[:5] == ["part0", "TEMPLATE", "1", "250.0", "kB"]


def test_json_has_bytes(engine: Engine, folder: Path) -> None:
    arguments = (
        "query",
        "product.onnx",
        "-d",
        "CPU",
        "--memory",
        "--shape",
        "x=4,250",
        "-c",
        "NUM_STREAMS=3",
        "--json",
    )
    found = json.loads(engine(*arguments, cwd=folder).out)["memory"]
    assert found["inputs"] == found["outputs"] == 4000
    assert found["streams"] == 3
    assert found["weights"] >= 250_000
    each = sum(found[name] for name in ("arena", "scratch", "states", "inputs", "outputs"))
    assert found["peak"] == found["weights"] - found["mapped"] + 3 * each


def test_unknown_lengths_are_to_be_stated(engine: Engine, folder: Path) -> None:
    done = engine("query", "product.onnx", "-d", "CPU", "--memory", cwd=folder)
    assert done.code == 2
    assert "input `x` (f32[N,250]) are not known; give --shape" in done.err


@pytest.mark.parametrize(
    ("options", "problem"), [(["--past", "3"], "add --memory"), (["--memory", "--past", "-1"], "a number, 0 or more")]
)
def test_past_is_a_length_for_memory(engine: Engine, folder: Path, options: list[str], problem: str) -> None:
    done = engine("query", "product.onnx", "-d", "CPU", *options, cwd=folder)
    assert done.code == 2
    assert problem in done.err
