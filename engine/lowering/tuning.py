"""Choice among several kernels for an operation: the default, or one that was measured to be faster.

A device provides the candidates for a problem and a way to time one; the rest is here. Candidates are timed in turns,
so that disturbances affect all of them, and the default is replaced only by a clearly faster one. Choices are kept in a
network's blob, and on disk for other networks.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Final, TypeVar

from engine.errors import BlobFormatError
from engine.files import ChoicesFile
from engine.limits import check_cancelled
from engine.startup import dataclass

CandidateT = TypeVar("CandidateT")
Times = Mapping[str, float]
"""Nanoseconds by candidate."""

MARGIN: Final = 0.95
"""Single measurements of equal kernels often differ by more than this ratio; medians over rounds rarely do."""


def median(times: Sequence[int]) -> int:
    """The median; for an even number of times, the longer of the two middle ones."""
    return sorted(times)[len(times) // 2]


@dataclass(frozen=True, slots=True)
class Timing:
    """How often candidates are timed, and how times are summarized.

    Attributes:
        rounds: how often each candidate is timed.
        summary: reduces the times of one candidate to one.
        hopeless: a candidate that is slower than the fastest by this factor is dropped from later rounds.
        long_ns: if even the fastest takes longer, `long_rounds` rounds suffice, because noise is relatively small.
    """

    rounds: int = 5
    summary: Callable[[Sequence[int]], float] = median
    hopeless: float = math.inf
    long_ns: float = math.inf
    long_rounds: int = 2


def time_in_turns(
    trials: Mapping[str, Callable[[], int]], deadline: float, timing: Timing | None = None
) -> dict[str, float] | None:
    """The nanoseconds of each candidate; None if the deadline passes before all rounds are done.

    Args:
        trials: by candidate, a function that runs it once and returns the elapsed nanoseconds.
        deadline: on the clock of `time.perf_counter`.
        timing: how often each is run; see `Timing`.
    """
    timing = timing or Timing()
    times: dict[str, list[int]] = {name: [] for name in trials}
    least, rounds, number = math.inf, timing.rounds, 0
    while number < rounds:
        number += 1
        for name, run in trials.items():
            if number > 1 and min(times[name]) >= timing.hopeless * least:
                continue
            times[name].append(run())
            if time.perf_counter() > deadline:
                return None
        least = min((min(each) for each in times.values()), default=0)
        if least > timing.long_ns:
            rounds = timing.long_rounds
    return {name: timing.summary(each) for name, each in times.items()}


@dataclass(slots=True, kw_only=True)
class Tuner:
    """Chooses among candidates for one network. Used by one thread at a time.

    A candidate's `str` identifies it among the candidates of its problem, and is stable across versions.

    Attributes:
        budget: the seconds left for measuring; at 0, known choices and otherwise defaults are used.
        choices: the chosen candidates by problem, as stored in a blob.
        cache: choices measured for other networks; None to cache nothing.
        found: the times of the candidates, by problem, for problems that this tuner measured.
        logger: where choices are logged.
    """

    budget: float = 0.0
    choices: dict[str, str] = field(default_factory=dict)
    cache: ChoicesFile | None = None
    found: dict[str, str] = field(default_factory=dict)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("engine.lowering"))

    def choose_candidate(
        self, problem: str, candidates: Sequence[CandidateT], measure: Callable[[float], Times | None]
    ) -> CandidateT:
        """The candidate for a problem; if no choice is known and time is left, the candidates are measured.

        Args:
            problem: a key with everything that affects which candidate is fastest, so that equal problems are measured
                once.
            candidates: at least one; the first is the default.
            measure: returns the times, given a deadline of `time.perf_counter`; None if the deadline is too early.
        """
        if len(candidates) == 1:
            return candidates[0]
        known = self.known(problem, candidates)
        if known is not None:
            return known
        if self.budget <= 0.0:
            return candidates[0]
        check_cancelled()
        with self.spending() as deadline:
            times = measure(deadline)
        return candidates[0] if times is None else self.decide(problem, candidates, times)

    def known(self, problem: str, candidates: Sequence[CandidateT]) -> CandidateT | None:
        """The earlier choice, from this tuner, the blob or another network, if it is still a candidate."""
        kept = [self.cache.get(key) for key in self.cache_keys(problem)] if self.cache is not None else []
        for name in filter(None, (self.choices.get(problem), *kept)):
            for candidate in candidates:
                if str(candidate) == name:
                    self.choices[problem] = name
                    return candidate
        return None

    def cache_keys(self, problem: str) -> Sequence[str]:
        """The keys under which the cache may have the choice for a problem; new choices are stored under the last."""
        return (problem,)

    @contextmanager
    def spending(self) -> Iterator[float]:
        """A context whose time is charged to the budget; yields the deadline."""
        begun = time.perf_counter()
        try:
            yield begun + self.budget
        finally:
            self.budget -= time.perf_counter() - begun

    def decide(self, problem: str, candidates: Sequence[CandidateT], times: Times) -> CandidateT:
        """Choose by the times of the measured candidates, at least one, and record the choice."""
        default = str(candidates[0])
        best = min(times, key=times.__getitem__)
        if default in times and times[best] >= MARGIN * times[default]:
            best = default
        self.choices[problem] = best
        if self.cache is not None:
            self.cache.put(self.cache_keys(problem)[-1], best)
        self.found[problem] = ", ".join(f"{name} {spent / 1000:.1f} us" for name, spent in times.items())
        self.logger.info("%s: chose %s (%s)", problem, best, self.found[problem])
        return next(candidate for candidate in candidates if str(candidate) == best)

    def described(self) -> tuple[str, ...]:
        """A line for each choice, with the times measured by this tuner."""
        return tuple(
            f"{problem}: {name} ({self.found[problem]})" if problem in self.found else f"{problem}: {name}"
            for problem, name in sorted(self.choices.items())
        )


def write_choices(choices: Mapping[str, str]) -> bytes:
    """Choices as a section of a blob."""
    return json.dumps(dict(choices), indent=0, sort_keys=True).encode()


def read_choices(content: bytes) -> dict[str, str]:
    """Read the output of `write_choices`. Raises `BlobFormatError`. Does not check that choices are candidates."""
    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise BlobFormatError(f"the recorded kernel choices are not valid JSON ({e}); export the network again") from e
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise BlobFormatError("the recorded kernel choices are not an object of strings; export the network again")
    return read
