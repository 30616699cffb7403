"""The script for GPUs, which are rarely available, does not fail there for a reason that a CPU could have shown."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return lambda name: importlib.import_module(f"comparison.{name}")


def case(name: str, operations: float, kernels: float, **resident: float) -> dict[str, Any]:
    found = {"OPENCL": kernels, **{name.replace("_", " "): ms for name, ms in resident.items()}}
    return {
        "name": name, "operations": operations, "milliseconds": {"OPENCL": kernels + 0.1}, "resident": found,
        "error": 1e-6, "choices": [], "notes": [],
    }  # fmt: skip


def test_the_tables_are_those_of_the_page(comparison: Any, tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("build\tpassed\t61\t\ntests\tFAILED\t100\t1 failed, 2 passed\n")
    (tmp_path / "device.txt").write_text("NVIDIA H200, driver 580\n")
    (tmp_path / "faults.json").write_text(json.dumps({"a fork": "FAILED: the process ended by SIGSEGV"}))
    cases = [
        case("gpt2_blocks, batch 1, f32", 1e9, 2.0, PyTorch_f32=3.9, PyTorch_TF32=3.5),
        case("gpt2_blocks, batch 1, f16", 1e9, 1.2, PyTorch_f16=3.96),
        case("product of size 1024, f32", 2 * 1024**3, 0.08, PyTorch_f32=0.07),
        case("product of size 1024, f16", 2 * 1024**3, 0.02),
    ]
    found = {"device": "x", "peak": 63000.0, "cases": cases, "left": ["unet, batch 1, f32"]}
    (tmp_path / "measured.json").write_text(json.dumps(found))
    text = comparison("gpu_page").page(tmp_path)
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines()]
    assert ("tests", "FAILED", "100", "1 failed, 2 passed") in rows
    assert ("a fork", "FAILED: the process ended by SIGSEGV") in rows
    assert ("gpt2_blocks, 64 tokens", "2.10", "2.00", "3.90", "3.50") in rows
    assert ("gpt2_blocks, 64 tokens", "1.30", "1.20", "3.96") in rows
    assert ("1024", "26.8", "43%", "30.7", "107.4", "-") in rows
    assert "Not measured, for lack of time: unet, batch 1, f32." in text
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    for header in (
        "OPENCL f16 | its kernels | PyTorch f16, on the device",
        "gpt2_blocks, 64 tokens",
        "product of size",
    ):
        assert header in page


def test_without_a_device_it_says_why_and_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "vendors").mkdir()
    environment = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path / "vendors"), "PYTHON": sys.executable}
    command = [BENCHMARKS / "gpu_check.sh", "--small", "--no-build", "--logs", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "no device that was found" in done.stdout
    assert "DeviceNotFoundError" in done.stdout
    assert "Nothing was measured." in done.stdout


def test_a_driver_that_crashes_or_fails_is_an_outcome(comparison: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = comparison("gpu_faults")
    run = subprocess.run

    def stand_in(code: str) -> Any:
        return lambda command, **options: run([sys.executable, "-c", code], **options)

    for code, words in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "FAILED: the process ended by SIGSEGV"),
        ("raise ArithmeticError('the answer deviates by 1.0')", "FAILED: ArithmeticError: the answer deviates by 1.0"),
        ("import sys; print('it has none', file=sys.stderr); sys.exit(77)", "left out: it has none"),
        ("", "passed"),
    ):
        monkeypatch.setattr("subprocess.run", stand_in(code))
        assert faults.outcome("a fork", "OPENCL") == words
    monkeypatch.setattr(faults, "LIMIT", 0.5)
    monkeypatch.setattr("subprocess.run", stand_in("import time; time.sleep(60)"))
    assert faults.outcome("a fork", "OPENCL") == "FAILED: no end in 0.5 s"


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    command = [BENCHMARKS / "gpu_check.sh", "--small", "--no-build", "--limit", "1200", "--logs", tmp_path]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1300)
    assert done.returncode == 0, done.stdout
    steps = [line.split("\t")[:2] for line in (tmp_path / "steps.tsv").read_text(encoding="utf-8").splitlines()]
    names = ["device", "doctor", "tests", "HETERO", "faults", "measuring"]
    assert steps == [[name, "passed"] for name in names]
    assert "| mobilenet_v2      | second half on CPU | OPENCL and CPU |" in done.stdout
    assert "| ctrl c during inferences                | passed " in done.stdout
    assert ("PyTorch is not available" in done.stdout) is (find_spec("torch") is None)
