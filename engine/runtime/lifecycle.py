"""What must happen to live requests and executors when the process forks or the interpreter exits."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Protocol

EXIT_GRACE_SECONDS = 5.0
"""How long the interpreter's exit waits for stages that are running; later it leaves them behind."""


class Participant(Protocol):
    """An object whose threads or waiters do not survive a fork, or must end before the interpreter does."""

    def after_fork(self) -> None:
        """Become usable in the child, where no other thread runs and any lock may be left locked."""

    def begin_exit(self) -> None:
        """Stop taking work; must not block."""

    def end_exit(self, timeout: float) -> None:
        """Wait, at most `timeout` seconds, until running work has ended."""


class Lifecycle:
    """The live participants, weakly, in the order in which they leave: requests before executors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: weakref.WeakSet[Participant] = weakref.WeakSet()
        self._executors: weakref.WeakSet[Participant] = weakref.WeakSet()

    def track_request(self, request: Participant) -> None:
        """Include a request for as long as it lives."""
        with self._lock:
            self._requests.add(request)

    def track_executor(self, executor: Participant) -> None:
        """Include an executor, or another owner of threads, for as long as it lives."""
        with self._lock:
            self._executors.add(executor)

    def live(self) -> list[Participant]:
        """Everything that is alive, requests first."""
        with self._lock:
            return [*self._requests, *self._executors]

    def before_fork(self) -> None:
        """Keep the sets from being changed, half-way, by a thread that the child will not have."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Let the sets change again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Make every participant usable in the child."""
        self._lock = threading.Lock()
        for participant in self.live():
            participant.after_fork()

    def exit(self) -> None:
        """Cancel requests, stop executors, and wait a bounded time for what is running."""
        participants = self.live()
        for participant in participants:
            participant.begin_exit()
        end = time.monotonic() + EXIT_GRACE_SECONDS
        for participant in participants:
            participant.end_exit(max(0.0, end - time.monotonic()))


lifecycle = Lifecycle()

# The threads are daemons, so that a stage that never returns cannot keep the process from ending; this
# hook gives the others the time to leave native code, which must not outlive the interpreter.
atexit.register(lifecycle.exit)
os.register_at_fork(
    before=lifecycle.before_fork,
    after_in_parent=lifecycle.after_fork_in_parent,
    after_in_child=lifecycle.after_fork_in_child,
)


class ForkSafeLock:
    """A lock that is free in a child process, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        lifecycle.track_executor(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Be free."""
        self._lock = threading.Lock()

    def begin_exit(self) -> None:
        """Nothing to stop."""

    def end_exit(self, timeout: float) -> None:
        """Nothing to wait for."""
