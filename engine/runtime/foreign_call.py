"""`ForeignCall`: stops what a stage has another library compute, from another thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from engine.runtime.deadlines import deadline_timer
from engine.runtime.lifecycle import ForkSafeLock

_log: Final = logging.getLogger("engine.runtime")
_FIRST_RETRY: Final = 0.001
_LAST_RETRY: Final = 1.0
"""Seconds after which a call is stopped again, at first and at most."""


class ForeignCall:
    """A call of another library that `stop` ends; thread-safe.

    A library may ignore a stop that comes before its call has begun, so it is repeated until `end`.
    """

    __slots__ = ("_has_ended", "_is_stopping", "_lock", "_stop")

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._lock = ForkSafeLock()
        self._has_ended = self._is_stopping = False

    def stop(self) -> None:
        """Stop the call, now and again until it ends. Harmless after that, and if it is already being stopped."""
        with self._lock:
            if self._is_stopping:
                return
            self._is_stopping = True
        self._again(_FIRST_RETRY)

    def end(self) -> None:
        """Say that the call has returned; `stop` is never called after this has returned."""
        with self._lock:
            self._has_ended = True

    def _again(self, pause: float) -> None:
        with self._lock:
            if self._has_ended:
                return
            try:
                self._stop()
            except Exception:
                _log.exception("stopping the call of a runtime failed; the inference ends when the call returns")
                return
        deadline_timer.call_after(pause, partial(self._again, min(2 * pause, _LAST_RETRY)))
