"""`Constraint`: which tokens of a sequence may follow, such as those that a grammar allows."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Constraint(Protocol):
    """Restricts the tokens of one sequence of a `Scheduler`, whose thread calls both methods for each token.

    They delay all sequences of the scheduler, so they should take less time than a token. An error that they raise ends
    this sequence only.
    """

    def allowed(self, logits: Array) -> Array:
        """The logits of the next token, a vector, with minus infinity for the tokens that must not follow.

        `logits` themselves must stay as they are.
        """

    def add(self, token: int) -> bool:
        """Take note of the chosen token; returns whether the sequence is complete, so that no token follows."""
