"""`Limits`, and `FoldingBudget`: the work that one compilation may still do in advance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final

from engine.startup import dataclass

BYTES_PER_BYTE: Final = 8
"""The bytes that may be folded for each byte of a model's constants: int4 to f32 is a factor of 8."""
WORK_PER_BYTE: Final = 128
"""The units of work for each byte of a model's constants."""


class OverBudgetError(Exception):
    """The budget of a compilation has no room for a constant: the pass that would make it leaves the graph as it is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a network is compiled with.

    Attributes:
        folded_bytes: the bytes of results that one compilation may fold, if the model's constants are small.
        folded_work: its work, in units of about one nanosecond; see `engine.ops.cost.evaluation_time`.
        tensor_bytes: the largest value in bytes that an operation may produce; 0 is the memory that is available.
    """

    folded_bytes: int = 1 << 30
    folded_work: int = 4 * 10**9
    tensor_bytes: int = 0


@dataclass(slots=True)
class FoldingBudget:
    """The folding left to one compilation. It depends on the model alone, so that equal models compile equally.

    Constants of the model are free, and allow more: `BYTES_PER_BYTE` and `WORK_PER_BYTE`. Not thread-safe.

    Attributes:
        limits: the limits of the compilation.
        constant_bytes: the bytes of the model's constants.
        used_bytes: bytes of the folded values that exist.
        used_work: units of work done.
    """

    limits: Limits = field(default_factory=Limits)
    constant_bytes: int = 0
    used_bytes: int = 0
    used_work: int = 0

    def allows(self, nbytes: int, work: int) -> bool:
        """Whether the budget has room for these further bytes and units of work."""
        most = self.limits.folded_work + WORK_PER_BYTE * self.constant_bytes
        return nbytes <= self.bytes_left and self.used_work + work <= most

    @property
    def bytes_left(self) -> int:
        """How many bytes may still be folded."""
        return max(self.limits.folded_bytes, BYTES_PER_BYTE * self.constant_bytes) - self.used_bytes

    def spend(self, nbytes: int, work: int) -> None:
        """Count folded bytes, or bytes of folded values that no longer exist as negative ones, and work."""
        self.used_bytes = max(0, self.used_bytes + nbytes)
        self.used_work += work

    def take(self, nbytes: int, work: int) -> None:
        """`spend` these bytes and this work. Raises `OverBudgetError` if the budget does not allow them."""
        if not self.allows(nbytes, work):
            raise OverBudgetError
        self.spend(nbytes, work)


class _Thread(threading.local):
    """The compilation in this thread."""

    budget: FoldingBudget | None = None


_thread = _Thread()
_DEFAULT: Final = Limits()


@contextmanager
def compilation(limits: Limits | None = None, constant_bytes: Callable[[], int] = lambda: 0) -> Iterator[FoldingBudget]:
    """Inside the block, this thread compiles within `limits`: all folding shares one budget.

    `constant_bytes` counts the bytes of the model's constants, now: constants that are folded later do not count. A
    compilation inside another one and blocks without limits share the budget of the outer block.
    """
    outer = _thread.budget
    if outer is None:
        _thread.budget = FoldingBudget(limits or _DEFAULT, constant_bytes())
    try:
        assert _thread.budget is not None
        yield _thread.budget
    finally:
        _thread.budget = outer


def current_budget() -> FoldingBudget:
    """The budget of the compilation in this thread; outside of one, a new one with the default limits."""
    return _thread.budget or FoldingBudget()


def current_limits() -> Limits:
    """The limits of the compilation in this thread; outside of one, the default limits."""
    return _DEFAULT if _thread.budget is None else _thread.budget.limits
