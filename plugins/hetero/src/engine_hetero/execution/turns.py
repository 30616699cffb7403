"""Who runs each part of an inference, where parts may start before their turn."""

from __future__ import annotations

import threading

from engine.runtime.lifecycle import Participant, lifecycle


class Turns(Participant):
    """Who runs each part of the inference at hand: its own stage, or a task that was started early. Thread-safe."""

    def __init__(self, parts: int) -> None:
        self.inference = 0
        self._parts = parts
        self._claimed: set[int] = set()
        self._done: dict[int, BaseException | None] = {}
        self._is_over = False
        self._changed = threading.Condition()
        lifecycle.track(self)

    def begin(self) -> None:
        """Forget the last inference."""
        with self._changed:
            self.inference += 1
            self._claimed.clear()
            self._done.clear()
            self._is_over = False

    def claim(self, part: int, inference: int | None = None) -> bool:
        """Whether the caller shall run the part; of all that ask, one is told so. Never of an earlier inference."""
        with self._changed:
            if part in self._claimed or (inference is not None and inference != self.inference):
                return False
            self._claimed.add(part)
            return True

    def finish(self, part: int, error: BaseException | None) -> None:
        """Say that a claimed part has run."""
        with self._changed:
            # What nobody will raise must not be kept: its traceback keeps the request that keeps this.
            self._done[part] = None if self._is_over else error
            self._changed.notify_all()

    def wait(self, part: int) -> None:
        """Wait for a part that another thread runs; raise what it raised."""
        with self._changed:
            self._changed.wait_for(lambda: part in self._done)
            error = self._done[part]
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback keeps this frame

    def abandon(self) -> list[int]:
        """Let nobody claim anything any more; return the parts that run."""
        with self._changed:
            running = sorted(self._claimed - self._done.keys())
            self._claimed.update(range(self._parts))
            self.inference += 1
            self._is_over = True
            self._done = dict.fromkeys(set(range(self._parts)) - set(running))
            return running

    def is_idle_within(self, seconds: float) -> bool:
        """Wait for the parts that run; False where some still do."""
        with self._changed:
            return self._changed.wait_for(lambda: self._claimed <= self._done.keys(), seconds)

    def _after_fork(self) -> None:
        """What ran in other threads of the parent never ends here."""
        self._changed = threading.Condition()
        self.abandon()
        self._done = dict.fromkeys(range(self._parts))
