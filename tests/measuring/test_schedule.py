"""Measuring in blocks: the requested subjects are measured in alternation, and an interrupt keeps the blocks so far."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, ops
from engine.cli.benchmark import Procedure, Subject, changed, compare_subjects, measure_alone
from engine.cli.benchmark.pinning import pin_new_threads, restrict_to_cores, thread_ids
from engine.cli.benchmark.worker import Worker, WorkerError
from engine.errors import InputError, UnsupportedError
from engine.ir import Constant, Parameter, Result, f32
from engine.onnx import write_model
from engine.runtime.benchmark import Measurement

Small = tuple[Path, dict[str, Any]]


class Clockwork:
    """A meter without a network: inferences of one millisecond each, and an interrupt before the block `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.blocks = stop, 0

    def measure(self, *, seconds: float | None = None, count: int | None = None) -> Measurement:
        if self.blocks == self.stop:
            raise KeyboardInterrupt
        self.blocks += 1
        limits = [round(seconds * 1e3)] if seconds is not None else []
        done = max(1, min([*limits, count] if count is not None else limits))
        return Measurement(0, done * 1e-3, np.full(done, 1_000_000, np.int64))


def silent(what: str, share: float) -> None:
    assert 0 <= share <= 1


@pytest.mark.parametrize(
    ("seconds", "count", "expected"),
    [(0, None, 1), (1.0, None, 1000), (None, 25, 25), (None, 3, 3), (0.01, 25, 10), (9.0, 25, 25)],
)
def test_the_limits_hold_over_all_blocks(seconds: float | None, count: int | None, expected: int) -> None:
    found = measure_alone(Clockwork(), 0, seconds, count, silent).all  # type: ignore[arg-type]
    assert found.count == pytest.approx(expected, abs=1)
    assert count is None or found.count <= count


def test_an_interrupt_keeps_the_blocks_before_it() -> None:
    found = measure_alone(Clockwork(stop=3), 0, 5.0, None, silent)  # type: ignore[arg-type]
    assert found.is_interrupted
    assert len(found.blocks) == 3
    with pytest.raises(KeyboardInterrupt):
        measure_alone(Clockwork(stop=0), 0, 5.0, None, silent)  # type: ignore[arg-type]


@pytest.mark.parametrize(("requests", "is_fresh"), [pytest.param(0, True, marks=pytest.mark.slow), (2, False)])
def test_subjects_alternate_in_processes_of_their_own(small: Small, requests: int, is_fresh: bool) -> None:
    path, inputs = small
    base = Subject(str(path), "CPU", {"COMPILE_EFFORT": "none"})
    subjects = [base, *(changed(base, words) for words in ("TEMPLATE", "ONNXRUNTIME", "INFERENCE_NUM_THREADS=1"))]
    told: list[str] = []
    procedure = Procedure(
        rounds=2, block_seconds=None, block_count=2, rest_seconds=0, requests=requests, is_fresh=is_fresh
    )
    found = compare_subjects(subjects, inputs, procedure, lambda what, share: told.append(what))
    assert [len(each.series.blocks) for each in found] == [2] * 4
    assert all(each.series.all.count == 4 for each in found)
    assert found[0].verdict is None
    assert all(each.verdict is not None and each.verdict.word == "undecided" for each in found[1:])
    assert all(each.difference is not None and each.difference < 1e-5 for each in found)
    assert [what for what in told if what.startswith("round")] == [
        *(f"round 1: {each.label}" for each in subjects),
        *(f"round 2: {each.label}" for each in (*subjects[1:], subjects[0])),
    ]
    assert found[2].about["versions"]["ONNXRUNTIME"] == metadata.version("onnxruntime")
    assert "COMPILE_EFFORT" not in found[1].about["config"]
    assert found[3].about["config"]["INFERENCE_NUM_THREADS"] == 1


@pytest.mark.parametrize(("other", "expected"), [(np.nan, 0.0), (1.0, np.inf)])
def test_numbers_that_are_not_finite_are_equal_only_to_themselves(
    other: float, expected: float, tmp_path: Path
) -> None:
    paths = []
    for index, number in enumerate((np.nan, other)):
        x = Parameter(f32, [3], "x")
        numbers = Constant(np.float32([number, np.inf, 1]))
        paths.append(tmp_path / f"with spaces {index}.onnx")
        write_model(Model([Result(ops.Add(x, numbers), "y")], [x]), paths[-1])
    base = Subject(str(paths[0]), "TEMPLATE")
    procedure = Procedure(rounds=1, block_seconds=None, block_count=1, rest_seconds=0)
    subjects = [base, changed(base, str(paths[1]))]
    found = compare_subjects(subjects, {"x": np.zeros(3, np.float32)}, procedure, silent)
    assert found[1].difference == expected


def test_an_interrupt_of_a_comparison_keeps_whole_rounds(small: Small) -> None:
    path, inputs = small
    base = Subject(str(path), "CPU")

    def stop(what: str, share: float) -> None:
        if what.startswith("round 3: other"):
            raise KeyboardInterrupt

    other = changed(base, "INFERENCE_NUM_THREADS=1")
    procedure = Procedure(rounds=9, block_seconds=None, block_count=1, rest_seconds=0, is_fresh=False)
    subjects = [base, dataclasses.replace(other, words="other")]
    found = compare_subjects(subjects, inputs, procedure, stop)
    assert all(each.series.is_interrupted for each in found)
    assert [len(each.series.blocks) for each in found] == [2, 2]
    assert found[1].verdict is not None
    assert found[1].verdict.word == "undecided"


def test_a_subject_with_other_inputs_is_refused(
    small: Small, tmp_path: Path, other_inputs: Callable[[Path], None]
) -> None:
    path, inputs = small
    other_inputs(tmp_path / "other.onnx")
    base = Subject(str(path), "CPU")
    with pytest.raises(InputError, match=r"other\.onnx has the inputs a, b; expected the base's: x"):
        compare_subjects([base, changed(base, str(tmp_path / "other.onnx"))], inputs, Procedure(1), silent)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("OPENCL NUM_STREAMS=2", ("OPENCL", {"A": "1", "NUM_STREAMS": "2"})),
        ("A=", ("CPU", {})),
        ("HETERO:OPENCL,CPU A=2", ("HETERO:OPENCL,CPU", {"A": "2"})),
    ],
)
def test_words_change_a_subject(words: str, expected: tuple[str, dict[str, str]]) -> None:
    found = changed(Subject("m.onnx", "CPU", {"A": "1"}), words)
    assert (found.device, dict(found.config)) == expected
    assert found.label == words
    assert Subject.from_json(found.as_json()) == found


def test_a_process_that_dies_is_named(small: Small) -> None:
    with Worker("the subject") as worker, pytest.raises(WorkerError, match=r"the subject: .*nowhere"):
        worker.call("open", subject=Subject("nowhere.onnx", "CPU").as_json(), cores=[])
    with Worker("the subject") as worker:
        os.kill(worker._process.pid, 9)
        with pytest.raises(WorkerError, match="the process ended during `memory`"):
            worker.call("memory")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_threads_are_restricted_and_pinned() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        with pytest.raises(UnsupportedError, match="usable: "):
            restrict_to_cores([99_999])
        restrict_to_cores([core])
        assert os.sched_getaffinity(0) == {core}
        assert pin_new_threads(thread_ids(), [core]) == 1, "the calling thread alone"
    finally:
        for thread in thread_ids():
            os.sched_setaffinity(thread, before)
