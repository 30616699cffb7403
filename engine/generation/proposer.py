"""`Proposer`: what proposes tokens for one sequence of a `Scheduler`."""

from __future__ import annotations

from engine.generation.speculation import Acceptance, DraftGenerator
from engine.startup import dataclass


@dataclass(slots=True, eq=False)
class Proposer:
    """What proposes tokens for one sequence.

    Attributes:
        acceptance: how many of its tokens are accepted.
        draft: the draft with the tokens of the sequence; None for a lookup.
        room: the most tokens that the sequence can have with proposed ones; None for no limit.
    """

    acceptance: Acceptance
    draft: DraftGenerator | None = None
    room: int | None = None
    refused: int = 0
    """How often a single token was refused since one was accepted."""
    has_ended: bool = False
