"""Parts that start before their turn: those that save more time than a start on another thread costs.

The times of parts are measured in every inference; until a part has run, its predicted time is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from statistics import median
from typing import Final

from engine.startup import dataclass
from engine_hetero.wiring.wiring import NETWORK, PartWiring, Wiring

HOP_SECONDS: Final = 1e-4
"""Seconds that an early start must save. Switching to another thread takes 20 to 50 us, as does waiting for it."""
_REMEMBERED: Final = 5
"""The number of inferences whose median time is used, so that the first or disturbed ones have no effect."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A part that can start once `after` has run (NETWORK: at once), while `others` run on other devices."""

    part: int
    after: int
    others: tuple[int, ...]


class EarlyStarts:
    """The parts of one network that may start early, and how long all parts took. Thread-safe."""

    __slots__ = ("_candidates", "_expected", "_measured")

    def __init__(self, wiring: Wiring) -> None:
        self._candidates = _candidates(wiring.parts)
        self._expected = [inf if p.predicted_seconds is None else p.predicted_seconds for p in wiring.parts]
        # Replaced as a whole: concurrent requests may lose a measurement, but nothing worse.
        self._measured: list[tuple[float, ...]] = [() for _ in wiring.parts]

    @property
    def is_possible(self) -> bool:
        """Whether any part could start early."""
        return bool(self._candidates)

    def add_measurement(self, part: int, seconds: float) -> None:
        """Record the time of a part that has run."""
        self._measured[part] = (*self._measured[part][1 - _REMEMBERED :], seconds)

    def choose(self) -> Mapping[int, tuple[int, ...]]:
        """The parts that start early in one inference, by the part after which they start; NETWORK: immediately."""
        chosen: dict[int, tuple[int, ...]] = {}
        for candidate in self._candidates:
            saved = min(self._seconds(candidate.part), sum(map(self._seconds, candidate.others)))
            if saved > HOP_SECONDS:
                chosen[candidate.after] = (*chosen.get(candidate.after, ()), candidate.part)
        return chosen

    def _seconds(self, part: int) -> float:
        measured = self._measured[part]
        return median(measured) if measured else self._expected[part]


def _candidates(parts: tuple[PartWiring, ...]) -> list[_Candidate]:
    """The parts whose inputs are complete while parts on other devices come before them."""
    found = []
    for number, part in enumerate(parts):
        ready = max(part.depends_on, default=NETWORK)
        others = tuple(other for other in range(ready + 1, number) if parts[other].device != part.device)
        if others:
            found.append(_Candidate(number, ready, others))
    return found
