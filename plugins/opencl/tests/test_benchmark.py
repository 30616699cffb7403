"""The comparison with CPU runs, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from engine_opencl.large_gpu import planned

from engine.onnx.importer import read_model
from engine.testing.networks import seeded_network

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "opencl.py"


def test_a_small_run(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), "--small", "--networks", "mobilenet_v2", "--rounds", "1"]
    run = subprocess.run(
        [*command, "--seconds", "0.01", "--rest", "0", "--json", str(file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["device"] in run.stdout
    product, recurrent, network = found["cases"]
    assert recurrent["name"] == "LSTM 2x8"
    assert product["name"] == "SGEMM 64x48x80"
    assert product["operations"] == 2 * 64 * 48 * 80
    for case in (product, recurrent, network):
        assert case["error"] < 1e-3
        assert case["milliseconds"].keys() == {"OPENCL", "CPU"}
        assert case["kernels"]
        assert case["name"] in run.stdout


def test_counts_of_networks_on_a_gpu() -> None:
    command = [sys.executable, str(SCRIPT), "--small", "--counts", "--networks", "mobilenet_v2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *_, in_f32, in_f16 = (
        list(map(str.strip, line.strip("|").split("|"))) for line in run.stdout.splitlines() if "|" in line
    )
    for precision, (network, stored, launches, moved, local, kernel) in (("f32", in_f32), ("f16", in_f16)):
        plan = planned(read_model(seeded_network(network, small=True).model), precision)
        assert (network, stored, int(launches)) == ("mobilenet_v2", precision, len(plan.launches))
        assert float(moved) == pytest.approx(plan.moved_bytes / 1e6, abs=0.05)
        assert (float(local), kernel) == (pytest.approx(plan.local_memory[0] / 1024, abs=0.05), plan.local_memory[1])


@pytest.mark.slow
def test_a_small_run_of_what_is_measured_on_gpus(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), "--gpu", "--small", "--rounds", "1", "--peer-device", "cpu"]
    run = subprocess.run(
        [*command, "--seconds", "0.01", "--rest", "0", "--json", str(file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["device"] in run.stdout
    assert found["peak"] > 0
    network, in_f16, product, _, one, two = found["cases"]
    assert found["left"] == []
    assert product["operations"] == 2 * 96**3
    assert (network["name"], in_f16["name"]) == ("mobilenet_v2, batch 1, f32", "mobilenet_v2, batch 1, f16")
    assert (one["name"], two["name"]) == ("ResNet-50, 1 images", "ResNet-50, 2 images")
    assert two["operations"] == 2 * one["operations"]
    for case in found["cases"]:
        # In f16, each of a dozen layers rounds its results by up to 2^-11.
        assert case["error"] < (12 * 2**-11 if "f16" in case["name"] else 1e-3)
        assert case["resident"]["OPENCL"] > 0
        assert case["name"] in run.stdout
    # Engines that are installed take part, with the same answers; of the others it is said why they do not.
    for name in ("PyTorch", "onnxruntime"):
        module = {"PyTorch": "torch"}.get(name, name)
        assert any(engine.startswith(name) for engine in one["milliseconds"]) == bool(find_spec(module))
    assert not any("deviates" in note for note in one["notes"])
