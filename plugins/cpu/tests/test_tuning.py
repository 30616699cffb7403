"""Choosing kernels by measurement: who is asked, what is remembered, and that nothing about a bad file matters."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from engine_cpu.tuning import Candidate, CpuTuner
from engine_cpu.tuning_cache import TuningCache

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32
from engine.native import default_isa

NODE = ops.Relu(Parameter(f32, [1], "x"))
FAST = Candidate("fast", "copy", {}, (64,), (64,))
SLOW = Candidate("slow", "copy", {}, (1 << 24,), (1 << 24,))


def choose(tuner: CpuTuner, key: str = "problem") -> str:
    return tuner.choose(NODE, key, [SLOW, FAST], default_isa()).name


def test_without_a_budget_the_default_is_taken() -> None:
    tuner = CpuTuner(1)
    assert choose(tuner) == "slow"
    assert not tuner.choices


def test_what_is_clearly_faster_is_taken_and_remembered() -> None:
    tuner = CpuTuner(1, budget=60.0)
    assert choose(tuner) == "fast"
    assert tuner.budget < 60.0
    # As in a network that is imported: no budget, and the same choice.
    assert choose(CpuTuner(1, choices=dict(tuner.choices))) == "fast"


def test_a_choice_is_for_its_problem_and_number_of_threads() -> None:
    tuner = CpuTuner(1, budget=60.0)
    choose(tuner)
    assert choose(CpuTuner(1, choices=dict(tuner.choices)), "another") == "slow"
    assert choose(CpuTuner(2, choices=dict(tuner.choices))) == "slow"


def test_a_budget_that_does_not_suffice_leaves_the_default() -> None:
    tuner = CpuTuner(1, budget=1e-6)
    assert choose(tuner) == "slow"
    assert not tuner.choices


@pytest.mark.parametrize(("seconds", "uses", "chosen"), [(1e-4, 1, "slow"), (1e-4, 100, "fast"), (1e-2, 1, "slow")])
def test_quick_measures_what_pays_for_itself(seconds: float, uses: int, chosen: str) -> None:
    """Otherwise, applications that run a few inferences wait longer for their results in total."""
    tuner = CpuTuner(1, 1000.0, budget=60.0)
    assert tuner.choose(NODE, "problem", [SLOW, FAST], default_isa(), seconds, uses).name == chosen


def test_a_cache_serves_other_processes(tmp_path: Path) -> None:
    cache = TuningCache(str(tmp_path / "new"))
    choose(CpuTuner(1, budget=60.0, cache=cache))
    cache.save()
    assert choose(CpuTuner(1, cache=TuningCache(str(tmp_path / "new")))) == "fast"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', '{"format": 1, "key": 3, "choices": {}}', "[" * 9999])
def test_a_damaged_cache_is_measured_again(tmp_path: Path, text: str) -> None:
    path = TuningCache(str(tmp_path)).path
    path.write_text(text)
    cache = TuningCache(str(tmp_path))
    assert choose(CpuTuner(1, cache=cache)) == "slow"
    cache.put("a", "b")
    cache.save()
    assert TuningCache(str(tmp_path)).get("a") == "b"


def test_a_cache_of_another_cpu_is_not_used(tmp_path: Path) -> None:
    cache = TuningCache(str(tmp_path))
    cache.put("a", "b")
    cache.save()
    stored = json.loads(cache.path.read_text())
    stored["key"][0] = "another CPU"
    cache.path.write_text(json.dumps(stored))
    assert TuningCache(str(tmp_path)).get("a") is None


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_cache_that_another_user_can_change_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = TuningCache(str(tmp_path / "new"))
    cache.put("a", "b")
    cache.save()
    folder, file = tmp_path / "new", cache.path
    assert [path.stat().st_mode & 0o777 for path in (folder, file)] == [0o700, 0o600]
    for path in (folder, file):
        path.chmod(0o777)
        assert TuningCache(str(folder)).get("a") is None
        assert f"{path} can be written by every user" in caplog.text
        assert TuningCache(str(folder), is_shared=True).get("a") == "b"
        path.chmod(0o700)
    folder.chmod(0o777)
    before = file.read_bytes()
    cache.put("c", "d")
    cache.save()
    assert file.read_bytes() == before


def test_without_effort_nothing_that_was_measured_before_counts(tmp_path: Path) -> None:
    """The result depends only on the model and the CPU."""
    x = Parameter(f32, [1, 16, 20, 20], "x")
    weights = Constant(np.ones((32, 16, 3, 3), np.float32))
    model = Model([ops.Conv(x, weights, pads=(1, 1, 1, 1))], [x])
    core = Core()
    config = {"CACHE_DIR": str(tmp_path), "COMPILE_EFFORT": "full"}
    assert core.compile_model(model, "CPU", config).tuner.choices
    assert core.compile_model(model, "CPU", {**config, "COMPILE_EFFORT": "none"}).tuner.choices == {}


def test_a_choice_that_is_no_candidate_any_more_is_measured_again() -> None:
    tuner = CpuTuner(1, budget=60.0)
    choose(tuner)
    (problem,) = tuner.choices
    assert choose(CpuTuner(1, choices={problem: "gone"})) == "slow"
    assert choose(CpuTuner(1, budget=60.0, choices={problem: "gone"})) == "fast"
