"""Verdicts: noise is not called a difference, and a difference is found."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.cli.benchmark.statistics import (
    CONFIDENCE,
    MIN_BLOCKS,
    MIN_DIFFERENCE,
    histogram,
    judge,
    judge_apart,
    median_interval,
)


@pytest.mark.parametrize("count", range(MIN_BLOCKS, 30))
def test_the_interval_of_the_median_has_its_confidence_for_any_distribution(count: int) -> None:
    """By counting: the median lies outside if all values beyond an end are on one side of it, as coins fall."""
    low, high = median_interval([float(value) for value in range(count)]) or (-1.0, -1.0)
    assert low == count - 1 - high, "it is symmetric"
    outside = 2 * sum(math.comb(count, below) for below in range(int(low) + 1)) / 2**count
    assert 1 - outside >= CONFIDENCE
    narrower = outside + 2 * math.comb(count, int(low) + 1) / 2**count
    assert 1 - narrower < CONFIDENCE, "the next narrower one would not do"


def test_equal_things_are_seldom_called_different() -> None:
    random = np.random.default_rng(0)
    words = []
    for _ in range(400):
        drift = np.exp(random.normal(0, 0.3, 9))  # the machine's clock in each round, for both
        base, other = (drift * np.exp(random.normal(0, 0.05, 9)) for _ in range(2))
        words.append(judge(list(base), list(other)).word)
    assert words.count("level") >= 0.93 * len(words)


@pytest.mark.parametrize(("factor", "word"), [(0.8, "faster"), (1.25, "slower")])
def test_a_difference_is_found_under_a_drift_that_is_larger(factor: float, word: str) -> None:
    random = np.random.default_rng(1)
    base = np.exp(random.normal(0, 0.3, 9))
    found = judge(list(base), list(base * factor * np.exp(random.normal(0, 0.02, 9))))
    assert found.word == word
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(1 / factor, rel=0.05)


def test_a_certain_but_tiny_difference_is_level() -> None:
    base = [1.0 + 0.001 * i for i in range(9)]
    assert judge(base, [value * (1 - MIN_DIFFERENCE / 2) for value in base]).word == "level"


def test_few_rounds_decide_nothing() -> None:
    assert judge([1.0] * 5, [0.1] * 5).word == "undecided"
    assert judge_apart([1.0] * 5, [0.1] * 9).word == "undecided"


def test_two_runs_need_a_larger_difference() -> None:
    base = [1.0, 1.001, 1.002, 0.999, 0.998, 1.0, 1.0, 1.001, 0.999]
    assert judge_apart(base, [value * 0.97 for value in base]).word == "level"
    assert judge_apart(base, [value * 0.9 for value in base]).word == "faster"
    assert judge_apart(base, [value * 1.1 for value in base]).word == "slower"


@pytest.mark.parametrize("values", [[], [2.0], [2.0] * 9, [1.0, 2.0], list(range(1, 1000)), [1.0] * 500 + [90.0]])
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    bins = histogram(np.array(values, np.float64))
    assert sum(each.count for each in bins) == len(values)
    if values:
        assert (bins[0].low, bins[-1].high) == (min(values), max(values))
        assert all(a.high == b.low for a, b in itertools.pairwise(bins))
