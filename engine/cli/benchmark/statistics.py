"""The statistics of measurements: a histogram, and verdicts that take noise into account."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.startup import dataclass

CONFIDENCE: Final = 0.95
MIN_DIFFERENCE: Final = 0.01
"""The smallest difference that counts in one alternating run, however certain it is."""
MIN_DIFFERENCE_APART: Final = 0.05
"""The smallest difference that counts between two runs: the clock of a machine drifts between them."""
MIN_BLOCKS: Final = 6
"""With fewer blocks, a difference cannot be told from chance: six agree by chance in 3 of 100 runs."""
PERCENTILES: Final = {"min": 0, "median": 50, "p90": 90, "p99": 99, "max": 100}

Word: TypeAlias = Literal["faster", "slower", "level", "undecided"]


@dataclass(frozen=True, slots=True)
class Bin:
    """How many latencies lie in [low, high), in milliseconds; the last one includes `high`."""

    low: float
    high: float
    count: int


def histogram(milliseconds: NDArray[Any], bins: int = 16) -> list[Bin]:
    """Count latencies in `bins` bins of one width from the minimum to the 99th percentile, and in one for the rest."""
    if not len(milliseconds):
        return []
    low, high, top = (float(np.percentile(milliseconds, percent)) for percent in (0, 99, 100))
    if low == high:
        return [Bin(low, top, len(milliseconds))]
    edges = [float(edge) for edge in np.linspace(low, high, bins + 1)]
    edges += [top] if top > high else []
    counts, _ = np.histogram(milliseconds, edges)
    return [Bin(a, b, int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How fast something is relative to the base.

    Attributes:
        ratio: time of the base divided by its time: above 1, it is faster.
        low, high: an interval that contains the true ratio with a probability of at least `CONFIDENCE`; both are the
            ratio if there are too few blocks.
        word: "faster" or "slower" if the interval lies on one side of 1 and the difference counts, "level" if not,
            "undecided" with too few blocks for any verdict.
    """

    ratio: float
    low: float
    high: float
    word: Word


def judge(base: Sequence[float], other: Sequence[float]) -> Verdict:
    """Judge times of blocks that alternated: the ratios of the rounds, since both had the same clock and neighbours."""
    ratios = [a / b for a, b in zip(base, other, strict=True)]
    ratio = statistics.median(ratios)
    low, high = median_interval(ratios) or (ratio, ratio)
    return Verdict(ratio, low, high, _word(ratio, low, high, len(ratios), MIN_DIFFERENCE))


def judge_apart(base: Sequence[float], other: Sequence[float]) -> Verdict:
    """Judge times of blocks of two runs: the interval is as wide as both medians' intervals, and allows a drift."""
    ratio = statistics.median(base) / statistics.median(other)
    both = median_interval(base), median_interval(other)
    if both[0] is None or both[1] is None:
        return Verdict(ratio, ratio, ratio, "undecided")
    low, high = both[0][0] / both[1][1], both[0][1] / both[1][0]
    return Verdict(ratio, low, high, _word(ratio, low, high, min(len(base), len(other)), MIN_DIFFERENCE_APART))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """An interval that contains the true median with a probability of at least `CONFIDENCE`; None for too few values.

    The order statistics between which it lies for any distribution, by the binomial distribution of how many values are
    below it. A bootstrap would be too narrow for the few blocks of a run: it excludes the outermost of seven values,
    although six of seven lie on one side by chance in one of eight runs.
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0  # the probability that at most `rank` values are below the median
    while True:
        tail += math.comb(count, rank) / 2**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        rank += 1
    return None if rank == 0 else (ordered[rank - 1], ordered[count - rank])


def _word(ratio: float, low: float, high: float, count: int, least: float) -> Word:
    if count < MIN_BLOCKS:
        return "undecided"
    if low <= 1 <= high or abs(ratio - 1) < least:
        return "level"
    return "faster" if ratio > 1 else "slower"
