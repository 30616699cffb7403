"""Which of several ways to run an operation is taken: the default, or what was measured to be faster on the device.

A device offers candidates for a problem, and a way to time one; what is common is here. Candidates are timed in turns,
so that what disturbs the machine meets all of them, and the default gives way only to what is clearly faster. Choices
are kept in a network's blob, and on disk for other networks.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from engine.errors import BlobFormatError
from engine.files import ChoicesFile

CandidateT = TypeVar("CandidateT")
Times = Mapping[str, float]
"""Nanoseconds by candidate."""

MARGIN: Final = 0.95
"""Two equal kernels differ by more than this in a good part of single shots, and seldom in what rounds agree on."""


def median(times: Sequence[int]) -> int:
    """The middle of the times; of two in the middle the longer."""
    return sorted(times)[len(times) // 2]


@dataclass(frozen=True, slots=True)
class Timing:
    """How often candidates are timed, and what counts.

    Attributes:
        rounds: how often each candidate is timed.
        summary: what the times of one candidate amount to.
        hopeless: a candidate that is slower than the fastest by this factor is left out of the rounds to come.
        long_ns: where even the fastest takes longer, `long_rounds` suffice: it is hardly disturbed.
    """

    rounds: int = 5
    summary: Callable[[Sequence[int]], float] = median
    hopeless: float = math.inf
    long_ns: float = math.inf
    long_rounds: int = 2


def time_in_turns(
    trials: Mapping[str, Callable[[], int]], deadline: float, timing: Timing | None = None
) -> dict[str, float] | None:
    """The nanoseconds of each candidate; None where the time does not suffice for all rounds.

    Args:
        trials: by candidate, what runs it once and returns the nanoseconds that it took.
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

    A candidate's `str` tells it from the others of its problem, in all versions alike.

    Attributes:
        budget: the seconds that measuring may still take; without any, what is known is used, else the default.
        choices: by problem, as a blob keeps them.
        cache: what was measured for other networks; None where nothing is kept.
        found: the times of the candidates, by problem, where they were measured by this tuner.
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
        """The candidate for a problem, measured where that is not known and there is time for it.

        Args:
            problem: names all that decides which candidate is fastest, so that equal problems are measured once.
            candidates: at least one; the first is the default.
            measure: gives the times until a deadline of `time.perf_counter`; None where that does not suffice.
        """
        if len(candidates) == 1:
            return candidates[0]
        known = self.known(problem, candidates)
        if known is not None:
            return known
        if self.budget <= 0.0:
            return candidates[0]
        with self.spending() as deadline:
            times = measure(deadline)
        return candidates[0] if times is None else self.decide(problem, candidates, times)

    def known(self, problem: str, candidates: Sequence[CandidateT]) -> CandidateT | None:
        """What was chosen before, here, in the blob or for another network, if it is still offered."""
        kept = [self.cache.get(key) for key in self.cache_keys(problem)] if self.cache is not None else []
        for name in (self.choices.get(problem), *kept):
            for candidate in candidates:
                if str(candidate) == name:
                    self.choices[problem] = name
                    return candidate
        return None

    def cache_keys(self, problem: str) -> Sequence[str]:
        """Where the cache may have the choice for a problem; new ones are put at the last key."""
        return (problem,)

    @contextmanager
    def spending(self) -> Iterator[float]:
        """A block whose time is taken from the budget; gives the deadline."""
        begun = time.perf_counter()
        try:
            yield begun + self.budget
        finally:
            self.budget -= time.perf_counter() - begun

    def decide(self, problem: str, candidates: Sequence[CandidateT], times: Times) -> CandidateT:
        """Choose by the times of those candidates that could be measured, one at least, and remember the choice."""
        default = str(candidates[0])
        best = min(times, key=times.__getitem__)
        if default in times and times[best] >= MARGIN * times[default]:
            best = default
        self.choices[problem] = best
        if self.cache is not None:
            self.cache.put(self.cache_keys(problem)[-1], best)
        self.found[problem] = ", ".join(f"{name} {spent / 1000:.1f} us" for name, spent in times.items())
        self.logger.info("for %s %s is chosen: %s", problem, best, self.found[problem])
        return next(candidate for candidate in candidates if str(candidate) == best)

    def described(self) -> tuple[str, ...]:
        """A line for each choice, with what was measured here."""
        return tuple(
            f"{problem}: {name} ({self.found[problem]})" if problem in self.found else f"{problem}: {name}"
            for problem, name in sorted(self.choices.items())
        )


def write_choices(choices: Mapping[str, str]) -> bytes:
    """Choices as a section of a blob."""
    return json.dumps(dict(choices), indent=0, sort_keys=True).encode()


def read_choices(content: bytes) -> dict[str, str]:
    """What `write_choices` wrote. Raises `BlobFormatError`. Whether a choice is offered, its problem will tell."""
    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise BlobFormatError(f"the choices of kernels are not JSON ({e}); export the network again") from e
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise BlobFormatError("the choices of kernels are not texts by problem; export the network again")
    return read
