"""The comparison with other engines: that it counts, judges and reports right, or its tables mislead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from against import verdict_of  # noqa: E402
from comparison.engines import Setup, ThisEngine, rate  # noqa: E402
from comparison.measure import OURS_IN_F32, EngineResult, ModelResult, deviation  # noqa: E402
from comparison.report import (  # noqa: E402
    cost_table,
    geometric_mean,
    losers_table,
    problems,
    ratio_to_peers,
    ratios_of_rounds,
    speed_table,
)
from comparison.worker import Worker, WorkerError  # noqa: E402


def result(ours: float | None, *peers: float, problem: str = "", agrees: bool = True) -> ModelResult:
    engines = {"engine": EngineResult(milliseconds=ours, agrees=agrees, problem=problem, peak_megabytes=50.0)}
    names = ("onnxruntime", "openvino")
    engines |= {name: EngineResult(milliseconds=peer, agrees=True) for name, peer in zip(names, peers, strict=False)}
    return ModelResult("net", 2_000_000_000, 1e-4, engines)


def test_the_ratio_is_to_the_faster_peer() -> None:
    assert ratio_to_peers(result(10.0, 12.0, 15.0), lambda r: r.milliseconds) == pytest.approx(1.2)
    assert ratio_to_peers(result(None, 12.0), lambda r: r.milliseconds) is None
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


def test_the_ratios_of_rounds_are_to_one_peer() -> None:
    """The faster by its median, and never this engine in f32: the fastest of each round would favour the peers."""
    found = result(10.0, 12.0, 15.0)
    for engine, rounds in zip(
        found.engines.values(), ([10.0, 20.0, 10.0], [12.0, 12.0, 30.0], [15.0] * 3), strict=True
    ):
        engine.rounds = rounds
    assert ratios_of_rounds(found) == pytest.approx([1.2, 0.6, 3.0])
    found.engines[OURS_IN_F32] = EngineResult(milliseconds=1.0, rounds=[1.0] * 3)
    found.engines["onnxruntime"].agrees = False
    assert ratios_of_rounds(found) == pytest.approx([1.5, 0.75, 1.5])
    found.engines["engine"].agrees = False
    assert ratios_of_rounds(found) == []


def test_the_table_gives_the_share_of_the_peak_and_the_mean_ratio() -> None:
    table = speed_table([result(10.0, 12.0, 15.0), result(10.0, 30.0, 40.0)], "f32", {"f32": 400.0}, streams=0)
    first, second, mean = table.splitlines()[2:]
    assert first.split("|")[1:-1][-2:] == [" 1.20x              ", " 50%           "]
    assert "3.00x" in second
    assert "1.90x" in mean
    assert "50" in cost_table([result(10.0, 12.0, 15.0)])


def test_the_slowest_models_of_a_sweep_come_first_with_what_takes_their_time() -> None:
    slow, fast = result(10.0, 5.0), result(10.0, 30.0)
    slow.engines["engine"].kinds = {"Conv": 1.0, "MatMul": 3.0}
    fast.name = "fast"
    first, second = losers_table([fast, slow]).splitlines()[2:]
    assert "0.50x" in first
    assert "MatMul 75%, Conv 25%" in first
    assert "fast" in second


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.9] * 6, "slower"),
        ([1.1] * 9 + [0.8], "faster"),
        ([1.1] * 5, ""),
        ([1.1] * 7 + [0.9] * 3, ""),
        ([1.001] * 20, ""),
    ],
    ids=["all-slower", "nine-of-ten", "too-few", "too-mixed", "too-little"],
)
def test_noise_is_told_from_a_regression(ratios: list[float], verdict: str) -> None:
    assert verdict_of(ratios) == verdict


def test_a_wrong_answer_counts_for_nothing() -> None:
    wrong = result(1.0, 12.0, problem="deviates", agrees=False)
    table = speed_table([wrong], "f32", {"f32": 400.0}, streams=0)
    assert "(wrong)" in table
    assert "x" not in table.splitlines()[2].split("(wrong)")[1]
    assert problems([wrong]) == ["net: deviates"]


def test_deviation_is_by_the_scale_of_what_is_expected() -> None:
    expected = np.array([[100.0, -1.0]])
    assert deviation(np.array([[100.0, 0.0]]), expected, "f32") == pytest.approx(0.01)
    assert deviation(np.array([[100.0, np.nan]]), expected, "f32") == np.inf
    assert deviation(np.array([100.0, -1.0]), expected, "f32") == np.inf
    assert deviation(expected + 5.05, expected, "bf16") == pytest.approx(0.1)


def test_a_rate_counts_all_threads() -> None:
    calls = [0, 0]

    def call(index: int) -> None:
        calls[index] += 1

    assert rate([lambda: call(0), lambda: call(1)], 0.05) > 0
    assert min(calls) > 1


def test_a_worker_says_what_its_engine_said() -> None:
    with Worker("engine", Setup(1, "f32", device="TEMPLATE")) as worker:
        worker.start()
        with pytest.raises(WorkerError, match=r"engine: .*missing\.onnx"):
            worker.call("load", path="/missing.onnx")
        with pytest.raises(WorkerError, match=r"engine: .*bind"):
            worker.call("bind", wrong=1)


def test_a_worker_imports_the_packages_of_its_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a folder with other packages, as the checkout is: a revision would be compared with itself."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "engine").mkdir(parents=True)
        (folder / "engine" / "__init__.py").write_text(f"raise ImportError({folder.name!r})")
    monkeypatch.chdir(here)
    with Worker("engine", Setup(1, "f32"), [there]) as worker, pytest.raises(WorkerError, match="there"):
        worker.start()
    monkeypatch.chdir(tmp_path)
    with Worker("engine", Setup(1, "f32"), [BENCHMARKS.parent]) as worker:
        assert worker.start()["location"] == str(BENCHMARKS.parent / "engine")


def test_the_time_of_a_node_is_that_of_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [("a", "Conv", 3.0), ("a", "Conv", 1.0), ("b", "Conv", 0.5), ("c", "Gemm", 2.0)]
    steps = [SimpleNamespace(name=name, op_type=kind, duration_ns=int(ms * 1e6)) for name, kind, ms in records]
    request = SimpleNamespace(infer=lambda feed: None, profiling_info=SimpleNamespace(nodes=steps))
    network = SimpleNamespace(create_infer_request=lambda: request)
    engine = ThisEngine(Setup(1, "f32"))
    monkeypatch.setattr(engine, "_core", SimpleNamespace(compile_model=lambda *arguments: network))
    assert engine.kinds("", {}) == {"Conv": 4.5, "Gemm": 2.0}


def test_a_worker_that_dies_is_reported() -> None:
    with Worker("engine", Setup(1, "f32", device="TEMPLATE")) as worker:
        worker._process.kill()
        with pytest.raises(WorkerError, match="the process ended during `start`"):
            worker.start()


def test_the_ratio_to_f32_compares_this_engine_with_itself() -> None:
    found = result(10.0, 12.0)
    found.engines[OURS_IN_F32] = EngineResult(milliseconds=25.0, agrees=True)
    row = speed_table([found], "f32", {}, streams=0).splitlines()[2]
    assert "1.20x" in row
    assert "2.50x" in row


@pytest.mark.slow
@pytest.mark.parametrize(("models", "streams", "form"), [("mlp,gru", 0, ""), ("unet", 2, ""), ("mlp", 0, "static")])
def test_the_whole_comparison_runs(tmp_path: Path, models: str, streams: int, form: str) -> None:
    file = tmp_path / "figures.json"
    command = [
        sys.executable, str(BENCHMARKS / "compare.py"), "--small", "--models", models, "--engines",
        "engine,onnxruntime", "--device", "TEMPLATE", "--rounds", "1", "--loads", "1", "--block-seconds", "0.02",
        "--rest", "0", "--streams", str(streams), "--json", str(file),
        *(("--form", form) if form else ()),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "geometric mean" in done.stdout
    document = json.loads(file.read_text())
    assert [model["name"] for model in document["models"]] == models.split(",")
    for model in document["models"]:
        for name, engine in model["engines"].items():
            assert engine["problem"] == ""
            assert engine["agrees"] is (None if name == OURS_IN_F32 else True)
            assert (engine["rate"] if streams else engine["milliseconds"]) > 0
            assert engine["peak_megabytes"] > engine["model_megabytes"] >= 0
