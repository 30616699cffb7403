"""Weights of few bits from the command line: the model that is written, the blob, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine import Core
from engine.testing.networks import SeededNetwork, seeded_network

Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def network() -> SeededNetwork:
    return seeded_network("gpt2_blocks", layers=1, hidden=96, heads=3, tokens=10)


@pytest.fixture
def folder(network: SeededNetwork, tmp_path: Path) -> Path:
    onnx.save(network.model, tmp_path / "net.onnx")
    return tmp_path


def test_a_compressed_model_is_written_with_a_report(engine: Engine, folder: Path, network: SeededNetwork) -> None:
    done = engine("compress", "net.onnx", cwd=folder)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:6] == ["LAYER", "MATRIX", "TYPE", "BLOCK", "BEFORE", "AFTER"]
    assert lines[1].split()[1:4] == ["96x288", "i4", "96"]
    assert lines[-2].startswith("4 of 4 matrices compressed")
    assert lines[-1].startswith("wrote net.int4.onnx")
    path = folder / "net.int4.onnx"
    assert path.stat().st_size < (folder / "net.onnx").stat().st_size / 5
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    before = onnxruntime.InferenceSession(folder / "net.onnx", providers=["CPUExecutionProvider"])
    expected, got = (each.run(None, network.inputs)[0] for each in (before, session))
    assert np.linalg.norm(got - expected) < 0.2 * np.linalg.norm(expected)


def test_options_choose_what_is_compressed(engine: Engine, folder: Path) -> None:
    options = ["--weights", "int8", "--weights-group", "32", "--asymmetric", "--json", "-o", "out.onnx"]
    found = json.loads(engine("compress", "net.onnx", *options, cwd=folder).out)
    assert found["file"] == "out.onnx"
    assert {(layer["element_type"], layer["block_size"]) for layer in found["layers"]} == {("u8", 32)}
    assert all(0 < layer["relative_error"] < 0.01 for layer in found["layers"])
    first = found["layers"][0]["nodes"][0]
    rest = json.loads(engine("compress", "net.onnx", "--exclude", first, "--json", cwd=folder).out)
    assert [(layer["nodes"], layer["reason"]) for layer in rest["skipped"]] == [([first], "excluded")]
    assert len(rest["layers"]) == 3


def test_nothing_is_written_if_nothing_is_compressed(engine: Engine, folder: Path) -> None:
    """A build step would take a model for compressed that is not."""
    done = engine("compress", "net.onnx", "--exclude", "*", cwd=folder)
    assert done.code != 0
    assert "no matrix of net.onnx can be compressed, so nothing was written" in done.err
    assert ": excluded" in done.err
    assert not (folder / "net.int4.onnx").exists()


def test_a_model_is_compressed_before_it_is_compiled(engine: Engine, folder: Path, network: SeededNetwork) -> None:
    done = engine("compile", "net.onnx", "-d", "TEMPLATE", "--weights", "int4", cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert "4 of 4 matrices compressed" in done.out
    engine("compress", "net.onnx", cwd=folder)
    expected, got = (
        next(iter(each(network.inputs).values()))
        for each in (
            Core().compile_model(str(folder / "net.int4.onnx"), "TEMPLATE"),
            Core().import_model(folder / "net.blob", "TEMPLATE"),
        )
    )
    np.testing.assert_array_equal(got, expected)
    found = json.loads(engine("compile", "net.onnx", "-d", "TEMPLATE", "--weights", "int8", "--json", cwd=folder).out)
    assert len(found["weights"]["layers"]) == 4
