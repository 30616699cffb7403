"""Timing candidates in turns, and choosing by the times.

If this fails, a disturbance of the machine decides which kernel a network runs for ever.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest

from engine.errors import BlobFormatError
from engine.lowering.tuning import Timing, Tuner, read_choices, time_in_turns, write_choices

EVER = math.inf


def trials(order: list[str], **times: list[int]) -> dict[str, Callable[[], int]]:
    """Trials that take these times one after the other, and record their turns."""

    def trial(name: str) -> Callable[[], int]:
        left = iter(times[name])

        def run() -> int:
            order.append(name)
            return next(left)

        return run

    return {name: trial(name) for name in times}


def test_candidates_take_turns_and_the_median_counts() -> None:
    order: list[str] = []
    times = time_in_turns(trials(order, a=[9, 5, 5, 5, 99], b=[4, 4, 99, 4, 4]), EVER)
    assert times == {"a": 5, "b": 4}
    assert order == ["a", "b"] * 5


def test_what_is_hopeless_gets_no_other_round() -> None:
    order: list[str] = []
    times = time_in_turns(trials(order, a=[10, 8, 9], b=[20], c=[19, 15, 15]), EVER, Timing(3, min, hopeless=2))
    assert times == {"a": 8, "b": 20, "c": 15}
    assert order == ["a", "b", "c", "a", "c", "a", "c"]


def test_what_takes_long_needs_fewer_rounds() -> None:
    order: list[str] = []
    assert time_in_turns(trials(order, a=[70, 60], b=[80, 80]), EVER, Timing(long_ns=50)) == {"a": 70, "b": 80}
    assert order == ["a", "b"] * 2


def test_a_deadline_that_passes_leaves_no_times() -> None:
    assert time_in_turns(trials([], a=[1, 1]), -EVER) is None


@pytest.mark.parametrize(("other", "expected"), [(96, "default"), (95, "default"), (94, "other")])
def test_the_default_gives_way_to_what_is_clearly_faster(other: int, expected: str) -> None:
    tuner = Tuner()
    assert tuner.decide("problem", ["default", "other"], {"default": 100, "other": other}) == expected
    assert tuner.choices == {"problem": expected}


def test_a_default_that_does_not_run_gives_way() -> None:
    assert Tuner().decide("problem", ["default", "other"], {"other": 1000}) == "other"


def test_measuring_takes_from_the_budget_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    deadlines: list[float] = []

    def measure(deadline: float) -> dict[str, float]:
        deadlines.append(deadline)
        return {"a": 2000, "b": 1000}

    tuner = Tuner(budget=1000.0)
    with caplog.at_level(logging.INFO, "engine.lowering"):
        assert [tuner.choose_candidate("problem", ["a", "b"], measure) for _ in range(2)] == ["b", "b"]
    assert len(deadlines) == 1
    assert tuner.budget < 1000.0
    assert tuner.described() == ("problem: b (a 2.0 us, b 1.0 us)",)
    assert "problem: chose b (a 2.0 us, b 1.0 us)" in caplog.text
    # As in a network that is imported: the same choice without a budget; a candidate that is no longer offered is not
    # used.
    kept = read_choices(write_choices(tuner.choices))
    assert Tuner(choices=kept).choose_candidate("problem", ["a", "b"], measure) == "b"
    assert Tuner(choices=kept).choose_candidate("problem", ["a", "c"], measure) == "a"
    assert Tuner().choose_candidate("problem", ["a", "b"], measure) == "a"
    assert len(deadlines) == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b"\xff", b"[" * 9999])
def test_damaged_choices_are_refused(content: bytes) -> None:
    with pytest.raises(BlobFormatError, match="export the network again"):
        read_choices(content)
