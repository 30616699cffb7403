"""The record of ratios to the peers: a loss beyond noise fails, noise does not, and nothing lowers a record unasked."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import comparison.record  # noqa: E402
from comparison.measure import EngineResult, ModelResult  # noqa: E402
from comparison.record import (  # noqa: E402
    RECORD,
    Entry,
    add_record_options,
    check_record_options,
    compared_with_record,
    entry_of,
    kind_of_run,
)

PEERS = {"onnxruntime": "1.0", "openvino": "2.0"}
FAST = [1.30, 1.31, 1.32, 1.33, 1.34, 1.35]
SLOW = [1.10, 1.11, 1.12, 1.13, 1.14, 1.15]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(comparison.record, "machine_key", lambda: "CPU A, avx2")
    return tmp_path / "record.json"


def run(path: Path, *, kind: str = "f32", record: bool = False, accept_losses: bool = False,
        **ratios: Sequence[float] | None) -> tuple[str, bool]:  # fmt: skip
    found = {name: None if each is None else Entry.of_rounds(each, PEERS) for name, each in ratios.items()}
    return compared_with_record(found, path, kind, record=record, accept_losses=accept_losses)


def recorded(path: Path, kind: str = "f32") -> dict[str, float]:
    return {name: entry["ratio"] for name, entry in json.loads(path.read_text())["CPU A, avx2"][kind].items()}


def test_a_loss_fails_and_names_the_model(path: Path) -> None:
    run(path, bert=FAST, mlp=FAST, record=True)
    text, is_lost = run(path, bert=SLOW, mlp=FAST)
    assert is_lost
    assert "  bert: 1.12x (1.10..1.15); recorded 1.32x (1.30..1.35) with onnxruntime 1.0, openvino 2.0" in text
    assert "  mlp" not in text
    assert "| bert  | 1.12x (1.10..1.15) | 1.32x (1.30..1.35) | -15%   | lost  |" in text


@pytest.mark.parametrize(
    ("ratios", "is_lost"),
    [
        ([1.20, 1.20, 1.20, 1.20, 1.20, 1.31], False),
        ([1.28, 1.28, 1.28, 1.28, 1.28, 1.28], False),
        ([1.25, 1.25, 1.25, 1.25, 1.25, 1.25], True),
        ([1.40, 1.40, 1.40, 1.40, 1.40, 1.40], False),
    ],
    ids=["intervals-overlap", "less-than-5-percent", "apart", "higher"],
)
def test_noise_is_no_loss(path: Path, ratios: list[float], is_lost: bool) -> None:
    run(path, bert=FAST, record=True)
    assert run(path, bert=ratios)[1] is is_lost


def test_a_model_without_a_right_result_is_lost(path: Path) -> None:
    run(path, bert=FAST, record=True)
    text, is_lost = run(path, bert=None, never=None)
    assert is_lost
    assert "bert: no right result" in text
    assert "never" not in text
    assert run(path, bert=None, record=True, accept_losses=True)[1]
    assert recorded(path) == {"bert": 1.325}


def test_a_record_is_raised_and_never_lowered_unasked(path: Path) -> None:
    run(path, bert=FAST, record=True)
    assert run(path, bert=SLOW, mlp=FAST, record=True)[1]
    assert recorded(path) == {"bert": 1.325, "mlp": 1.325}
    assert not run(path, bert=[1.5] * 6, record=True)[1]
    assert recorded(path)["bert"] == 1.5
    assert not run(path, bert=SLOW, record=True, accept_losses=True)[1]
    assert recorded(path) == {"bert": 1.125, "mlp": 1.325}


def test_chance_neither_raises_nor_sinks_a_record(path: Path) -> None:
    run(path, bert=FAST, record=True)
    for ratios in ([1.34, 1.35, 1.36, 1.37, 1.38, 1.39], [1.27, 1.28, 1.28, 1.29, 1.29, 1.29]):
        assert not run(path, bert=ratios, record=True)[1]
        assert recorded(path) == {"bert": 1.325}


def test_cpus_and_kinds_of_runs_have_records_of_their_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, bert=FAST, record=True)
    text, is_lost = run(path, kind="bf16", bert=SLOW, record=True)
    assert not is_lost
    assert "Nothing was recorded of `bf16` before, on CPU A, avx2" in text
    monkeypatch.setattr(comparison.record, "machine_key", lambda: "CPU B, avx512")
    assert not run(path, bert=SLOW)[1]
    assert recorded(path) == {"bert": 1.325}
    assert kind_of_run("static") == "static"
    assert kind_of_run("f32", zoo="published", threads=1, clock="cpu") == "published, f32, 1 thread, cpu clock"


def test_other_versions_of_the_peers_are_named(path: Path) -> None:
    run(path, bert=FAST, record=True)
    newer = {"bert": Entry.of_rounds(SLOW, {"onnxruntime": "1.0", "openvino": "2.1"})}
    text, _ = compared_with_record(newer, path, "f32", record=False)
    assert "; the run had openvino 2.1" in text


def test_an_entry_has_the_median_of_the_rounds_and_its_interval() -> None:
    engines = {
        "engine": EngineResult("0.1", rounds=[1.0] * 6, milliseconds=1.0, agrees=True),
        "onnxruntime": EngineResult("1.0", rounds=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], milliseconds=1.25, agrees=True),
        "openvino": EngineResult("2.0-123-abc-releases/2/0", problem="fails"),
    }
    found = entry_of(ModelResult("net", 1, 1e-4, engines))
    assert found == Entry(1.25, 1.0, 1.5, PEERS)
    assert Entry.from_json(json.loads(json.dumps(found.to_json()))) == found
    engines["engine"].agrees = False
    assert entry_of(ModelResult("net", 1, 1e-4, engines)) is None


def test_runs_that_cannot_be_compared_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="CPU")
    add_record_options(parser)

    def checked(*arguments: str) -> argparse.Namespace:
        options = parser.parse_args(arguments)
        check_record_options(parser, options, ["device"])
        return options

    assert checked("--record", "--rounds", "6").baseline == RECORD
    assert checked("--rounds", "1", "--device", "TEMPLATE").baseline is None
    for arguments, message in (
        (["--accept-losses"], "expected --record"),
        (["--baseline", "--rounds", "5"], "expected --rounds of 6"),
        (["--record", "--device", "TEMPLATE"], "expected no --device"),
    ):
        with pytest.raises(SystemExit):
            checked(*arguments)
        assert message in capsys.readouterr().err
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    with pytest.raises(SystemExit):
        checked("--baseline")


def test_the_record_of_this_repository_can_be_read() -> None:
    for kinds in json.loads(RECORD.read_text()).values():
        for entries in kinds.values():
            for entry in entries.values():
                found = Entry.from_json(entry)
                assert 0 < found.low <= found.ratio <= found.high
                assert found.peers
