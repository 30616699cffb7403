"""One timer thread for the deadlines of all requests of the process."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from engine.errors import InferError
from engine.runtime.lifecycle import Participant, lifecycle
from engine.threads import start_thread

_log = logging.getLogger("engine.runtime")


class Deadline:
    """One pending call; `cancel` makes it a no-op and drops its references."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Drop the call; harmless after it was made."""
        self._action = None

    def fire(self) -> None:
        """Make the call, unless it was made or cancelled."""
        action, self._action = self._action, None
        if action is not None:
            action()


class DeadlineTimer(Participant):
    """Calls functions at given times, on a daemon thread that starts with the first call. Thread-safe."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: list[tuple[float, int, Deadline]] = []
        self._thread: threading.Thread | None = None
        lifecycle.track(self)

    def call_after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        """Call `action`, which must be short, `seconds` from now unless the returned deadline is cancelled.

        Raises `InferError` if no thread can be started.
        """
        deadline = Deadline(action)
        with self._lock:  # not the condition, see `ForkSafeLock`
            if self._thread is None:
                self._thread = self._started_thread()
            heapq.heappush(self._pending, (time.monotonic() + seconds, next(self._order), deadline))
            self._changed.notify_all()  # a single one could reach a thread that an interrupted call has woken
        return deadline

    def _started_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="engine-deadlines", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as e:
            raise InferError(f"the thread that watches deadlines cannot start: {e}") from e
        return thread

    def _work(self) -> None:
        while True:
            deadline = self._next()
            try:
                deadline.fire()
            except Exception:
                _log.exception("a deadline's action raised")
            del deadline

    def _next(self) -> Deadline:
        with self._lock:
            while True:
                now = time.monotonic()
                if self._pending and self._pending[0][0] <= now:
                    return heapq.heappop(self._pending)[2]
                wait = self._pending[0][0] - now if self._pending else None
                self._changed.wait(None if wait is None else min(wait, threading.TIMEOUT_MAX))

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending = []
        self._thread = None


deadline_timer = DeadlineTimer()
