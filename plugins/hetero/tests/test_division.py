"""The choice among several divisions: noise alone does not justify more subgraphs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from engine_hetero.division.dividing import _worth_its_subgraphs


@dataclass
class Candidate:
    """The properties that a division must have."""

    count: int
    seconds: float

    @property
    def members(self) -> tuple[int, ...]:
        return (0,) * self.count


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([(1, 1.0)], 0),
        ([(1, 1.0), (90, 0.95)], 0),
        ([(90, 0.95), (1, 1.0)], 1),
        ([(1, 1.0), (3, 0.8)], 1),
        ([(1, 1.0), (1, 0.9), (2, 0.85)], 1),
        ([(1, 1.0), (2, 0.85), (5, 0.8)], 1),
        ([(1, 1.0), (2, 0.95), (5, 0.5)], 2),
    ],
)
def test_more_subgraphs_must_save_a_tenth(candidates: list[tuple[int, float]], expected: int) -> None:
    plans = [Candidate(*each) for each in candidates]
    assert _worth_its_subgraphs(plans) is plans[expected]  # type: ignore[arg-type, comparison-overlap]
