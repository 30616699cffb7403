"""Assigns parts of an inference to threads, since parts may start before their turn."""

from __future__ import annotations

import threading

from engine.runtime.lifecycle import Participant, lifecycle
from engine.threads import Signal


class Turns(Participant):
    """Tracks whether a part is run by its own stage or by a task started early. Thread-safe."""

    def __init__(self, parts: int) -> None:
        self.inference = 0
        self._parts = parts
        self._claimed: set[int] = set()
        self._done: dict[int, BaseException | None] = {}
        self._is_over = False
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        lifecycle.track(self)

    def begin(self) -> None:
        """Start a new inference, in which no part is claimed or done."""
        with self._lock:
            self.inference += 1
            self._claimed.clear()
            self._done.clear()
            self._is_over = False

    def claim(self, part: int, inference: int | None = None) -> bool:
        """Whether the caller must run the part: True for exactly one caller, and never for an earlier inference."""
        with self._lock:
            if part in self._claimed or (inference is not None and inference != self.inference):
                return False
            self._claimed.add(part)
            return True

    def finish(self, part: int, error: BaseException | None) -> None:
        """Record that a claimed part has run."""
        with self._lock:
            # An error that will not be raised must be dropped: its traceback refers to the request, which refers to
            # this.
            self._done[part] = None if self._is_over else error
            self._changed.notify_all()

    def wait(self, part: int) -> None:
        """Wait for a part that another thread runs; raise its error."""
        self._changed.wait_for(lambda: part in self._done)
        error = self._done[part]
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame

    def abandon(self) -> list[int]:
        """Refuse all further claims; return the running parts."""
        with self._lock:
            running = sorted(self._claimed - self._done.keys())
            self._claimed.update(range(self._parts))
            self.inference += 1
            self._is_over = True
            self._done = dict.fromkeys(set(range(self._parts)) - set(running))
            return running

    def is_idle_within(self, seconds: float) -> bool:
        """Wait for the running parts; False if some still run after the timeout."""
        return self._changed.wait_for(lambda: self._claimed <= self._done.keys(), seconds)

    def _after_fork(self) -> None:
        """Drop parts that ran in other threads of the parent, which never end in the child."""
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        self.abandon()
        self._done = dict.fromkeys(range(self._parts))
