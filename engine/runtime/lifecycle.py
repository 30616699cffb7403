"""Prepares live requests and executors for a fork of the process and for the interpreter's exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from engine.errors import Cancelled

EXIT_GRACE_SECONDS = 5.0
"""How long the interpreter's exit waits for running stages before it abandons them."""


class Participant:
    """An object whose threads or locks do not survive a fork, or whose threads must end before the interpreter does."""

    def _after_fork(self) -> None:
        """Become usable in the child, where no other thread runs and any lock may have been left locked."""

    def _begin_exit(self) -> None:
        """Make running work end soon; must not block."""

    def _is_busy(self) -> bool:
        """Whether the exit should wait for running work, for a limited time."""
        return False

    def _end_exit(self, timeout: float) -> None:
        """Stop the threads; wait at most `timeout` seconds."""


class Lifecycle:
    """The live participants, held weakly.

    Attributes:
        is_exiting: whether the interpreter's exit has begun, so that nothing more must be started.
    """

    def __init__(self) -> None:
        self.is_exiting = False
        self._work: set[object] = set()
        self._lock = threading.Lock()
        self._participants: weakref.WeakSet[Participant] = weakref.WeakSet()

    def track(self, participant: Participant) -> None:
        """Track a participant for as long as it lives."""
        with self._lock:
            self._participants.add(participant)

    def live(self) -> list[Participant]:
        """The participants that are alive, as strong references. Thread-safe."""
        with self._lock:
            return list(self._participants)

    def refuse_at_exit(self, what: str) -> None:
        """Raise `Cancelled` if the interpreter's exit has begun."""
        if self.is_exiting:
            raise Cancelled(f"{what} is refused: the interpreter exits")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Let the exit wait for work of the calling thread, such as compiling. Raises `Cancelled` during the exit."""
        self.refuse_at_exit(what)
        token = object()
        self._work.add(token)
        try:
            yield
        finally:
            self._work.discard(token)

    def before_fork(self) -> None:
        """Lock the sets, so that no thread is changing them while the process is copied.

        Before, other threads end what they import of the engine: in the child, the lock of a module that is half
        imported would never be released.
        """
        _end_imports()
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Release the lock that was taken before the fork."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Make every participant usable in the child."""
        self._lock = threading.Lock()
        self._work.clear()
        for participant in self.live():
            participant._after_fork()

    def exit(self) -> None:
        """Refuse and cancel requests, let callbacks run and stop executors; wait a limited time for running work."""
        self.is_exiting = True
        participants = self.live()
        for participant in participants:
            participant._begin_exit()
        end = time.monotonic() + EXIT_GRACE_SECONDS
        # A task of one executor may submit to another, so none is stopped before all are idle.
        while time.monotonic() < end and (self._work or any(each._is_busy() for each in participants)):
            time.sleep(0.001)
        for participant in participants:
            participant._end_exit(max(0.0, end - time.monotonic()))


def _end_imports() -> None:
    """Wait for other threads that import modules of the engine, or of distributions that are named like it."""
    seen: set[str] = set()
    while names := _half_imported() - seen:
        seen |= names
        for name in names:
            with suppress(Exception):  # the thread that imports it has the error
                import_module(name)


def _half_imported() -> set[str]:
    modules = [(name, module) for name, module in list(sys.modules.items()) if name.startswith("engine")]
    return {name for name, module in modules if getattr(getattr(module, "__spec__", None), "_initializing", False)}


lifecycle = Lifecycle()

# The threads are daemons, so that a stage that never returns cannot keep the process from exiting; this hook gives the
# other threads time to return from native code, which must not outlive the interpreter.
atexit.register(lifecycle.exit)
os.register_at_fork(
    before=lifecycle.before_fork,
    after_in_parent=lifecycle.after_fork_in_parent,
    after_in_child=lifecycle.after_fork_in_child,
)


_RLock = type(threading.RLock())


class ForkSafeLock(_RLock, Participant):  # type: ignore[valid-type, misc]
    """A reentrant lock that is free in a child process, even if a thread of the parent held it.

    `with` calls methods written in C, as it does for `threading.Lock`: in a method in Python, Ctrl-C could come between
    acquiring the lock and entering the block, and the lock would never be released. For the same reason, use a lock of
    this kind or of `threading` in `with`, not a `threading.Condition` on top of it.
    """

    def __init__(self) -> None:
        lifecycle.track(self)

    def _after_fork(self) -> None:
        self._at_fork_reinit()
