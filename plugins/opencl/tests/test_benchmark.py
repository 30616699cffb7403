"""The comparison with CPU runs, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    product, network = found["cases"]
    assert product["name"] == "SGEMM 64x48x80"
    assert product["operations"] == 2 * 64 * 48 * 80
    for case in (product, network):
        assert case["error"] < 1e-3
        assert case["milliseconds"].keys() == {"OPENCL", "CPU"}
        assert case["kernels"]
        assert case["name"] in run.stdout
