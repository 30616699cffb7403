"""`Choices`: what lowering decides by size and not by necessity, so that the plans of one family decide alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from engine.ir import Node

ChoiceT = TypeVar("ChoiceT")


class Choices:
    """Decisions by node, each made once: the kernel of a convolution, whether convolutions are joined to a chain.

    Each of them is right for all lengths, and the best one for those at which it was made. Used by one thread at a
    time.
    """

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], object] = {}

    def once(self, what: str, node: Node, decide: Callable[[], ChoiceT]) -> ChoiceT:
        """The earlier decision on `what` for a node of this name; if there is none, that of `decide`, which is kept."""
        key = what, node.friendly_name
        if key not in self._made:
            self._made[key] = decide()
        return self._made[key]  # type: ignore[return-value]
