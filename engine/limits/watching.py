"""Who watches a compilation: it can be cancelled, and tells how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol, TypeAlias

from engine.errors import Cancelled

Progress: TypeAlias = Callable[[str, float], object]
"""Called with what is done next, and with an estimate of the share that is done, from 0 to 1, which never decreases."""


class CancelSignal(Protocol):
    """A request to stop, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""


_STAGES: Final = {"read": (0.0, 0.1), "transform": (0.1, 0.5), "lower": (0.5, 1.0)}
"""The shares of a compilation at which its stages usually begin and end."""


class _Watch:
    """What several threads tell of one compilation is passed on one after the other."""

    def __init__(self, cancel: CancelSignal | None, progress: Progress | None) -> None:
        self._cancel, self._progress = cancel, progress
        self._reached = 0.0
        self._lock = threading.Lock()

    def check(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled("the compilation was cancelled")

    def report(self, what: str, share: float) -> None:
        self.check()
        if self._progress is None:
            return
        with self._lock:
            self._reached = max(self._reached, share)
            try:
                self._progress(what, self._reached)
            except Exception as e:
                raise Cancelled(f"the compilation was ended by its `progress`: {type(e).__name__}: {e}") from e
        self.check()


class _Place(NamedTuple):
    """A watch, and the part of a stage that the innermost step is."""

    watch: _Watch
    begin: float = 0.0
    end: float = 1.0

    def report(self, stage: str, what: str, part: float = 0.0) -> None:
        first, last = _STAGES[stage]
        self.watch.report(what, first + (last - first) * (self.begin + (self.end - self.begin) * part))


_place: ContextVar[_Place | None] = ContextVar("_place", default=None)


@contextmanager
def watched(cancel: CancelSignal | None, progress: Progress | None) -> Iterator[None]:
    """Inside the block, compilations of this thread are watched; without arguments, as outside of it.

    What `engine.threads.in_threads` runs for them is watched, too.
    """
    if cancel is None and progress is None:
        yield
        return
    token = _place.set(_Place(_Watch(cancel, progress)))
    try:
        yield
    finally:
        _place.reset(token)


@contextmanager
def step(stage: str, what: str, number: int, total: int) -> Iterator[None]:
    """The block is one of the `total` steps of a stage, or of the step around it: see `report_progress`."""
    outer = _place.get()
    if outer is None:
        yield
        return
    width = (outer.end - outer.begin) / total
    begin = outer.begin + number * width
    place = _Place(outer.watch, begin, begin + width)
    place.report(stage, what)
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def check_cancelled() -> None:
    """Raise `Cancelled` if the compilation of this thread is to stop."""
    if (place := _place.get()) is not None:
        place.watch.check()


def report_progress(stage: str, what: str, part: float = 0.0) -> None:
    """Say that `part` of a stage ("read", "transform" or "lower") is done, and what is done next.

    Raises `Cancelled` if the compilation is to stop.
    """
    if (place := _place.get()) is not None:
        place.report(stage, what, part)
