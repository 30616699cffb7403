"""`Choices`: the decisions of lowering that depend on size, so that the plans of one family share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from engine.ir import Node
from engine_cpu.fitting import Misfit

ChoiceT = TypeVar("ChoiceT")

# What choices for other lengths may cost: a share of the estimated time of all convolutions, and 50 microseconds in
# core cycles, because estimates of smaller differences mean little.
_MAX_LOSS: Final = 0.03
_MAX_LOST_CYCLES: Final = 150e3


class Choices:
    """Decisions by node, each made once: the kernel of a convolution, whether convolutions are joined to a chain.

    Each of them is right for all lengths, and the best one for those at which it was made. For each lowering that
    follows them, `begin` and `check` determine whether they are still good. Used by one thread at a time.
    """

    __slots__ = ("_best", "_followed", "_made", "_unfit", "_worst")

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], object] = {}
        self.begin()

    @property
    def is_empty(self) -> bool:
        """Whether no decision was recorded."""
        return not self._made

    def begin(self) -> None:
        """Begin a lowering for other lengths."""
        self._best = self._followed = 0.0
        self._worst = (0.0, "")
        self._unfit: Misfit | None = None

    def check(self) -> None:
        """Raise `Misfit` if the decisions cost much time at the lengths of this lowering."""
        if self._unfit is not None:
            raise self._unfit
        if self._followed - self._best > _MAX_LOSS * self._best + _MAX_LOST_CYCLES:
            raise Misfit("the best kernels for other lengths would be slow for these", self._worst[1])

    def once(self, what: str, node: Node, decide: Callable[[], ChoiceT]) -> ChoiceT:
        """The earlier decision on `what` for a node of this name; otherwise the decision of `decide`, which is kept."""
        key = what, node.friendly_name
        if key not in self._made:
            self._made[key] = decide()
        return self._made[key]  # type: ignore[return-value]

    def add_times(self, node: Node, followed: float, best: float) -> None:
        """The estimated core cycles of a decision that was made for other lengths, and of the best one for these."""
        self._followed += followed
        self._best += best
        self._worst = max(self._worst, (followed - best, node.friendly_name))

    def refuse(self, node: Node, reason: str) -> None:
        """Record that a decision made for other lengths is bad for these."""
        self._unfit = self._unfit or Misfit(reason, node.friendly_name)
