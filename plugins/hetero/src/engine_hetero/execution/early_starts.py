"""Which parts start before their turn: those that then save more than a start from another thread costs.

How long parts take is measured in every inference; until a part has run, what the cost model expects of it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from engine_hetero.parts.wiring import NETWORK, PartWiring, Wiring

HOP_SECONDS: Final = 1e-4
"""What an early start has to save. A hop to another thread takes 20 to 50 us, and its result is waited for."""
_REMEMBERED: Final = 5
"""Inferences whose median counts, so that neither the first one nor a disturbed one decides."""


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
        # Replaced as a whole: two requests that finish together may lose a measurement, not more.
        self._measured: list[tuple[float, ...]] = [() for _ in wiring.parts]

    @property
    def is_possible(self) -> bool:
        """Whether any part could start early."""
        return bool(self._candidates)

    def add_measurement(self, part: int, seconds: float) -> None:
        """Note how long a part took, once it has run."""
        self._measured[part] = (*self._measured[part][1 - _REMEMBERED :], seconds)

    def choose(self) -> Mapping[int, tuple[int, ...]]:
        """For one inference: by the part after which they start, NETWORK for those that start at once, the parts."""
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
    """The parts that have all that they need while others, on other devices, are next in turn."""
    found = []
    for number, part in enumerate(parts):
        ready = max(part.depends_on, default=NETWORK)
        others = tuple(other for other in range(ready + 1, number) if parts[other].device != part.device)
        if others:
            found.append(_Candidate(number, ready, others))
    return found
