"""Executors, which run the stages of asynchronous requests."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from engine.errors import InferError
from engine.runtime.lifecycle import Participant, lifecycle
from engine.threads import start_thread

Task: TypeAlias = Callable[[], object]

_log = logging.getLogger("engine.runtime")


class Executor(ABC):
    """Runs tasks, each once; an executor with one thread runs them in the order of submission.

    A device with its own queue may implement it. `name` appears in profiles and thread names.
    """

    name: str = "executor"

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Run `task` now or later. Thread-safe. Raises `InferError` if the executor is shut down."""

    def owns_current_thread(self) -> bool:
        """Whether the calling thread is one of this executor's, where waiting for its tasks may deadlock."""
        return False


class InlineExecutor(Executor):
    """Runs each task immediately in the thread that submits it."""

    name = "inline"

    def submit(self, task: Task) -> None:
        """Run `task` before returning, and raise its exceptions."""
        task()


class ThreadExecutor(Executor, Participant):
    """Runs tasks on at most `threads` own threads, first in, first out.

    Threads start when tasks arrive, stop when the executor is shut down or garbage collected (queued tasks
    keep the objects alive that they refer to), start again in a child after a fork, and never delay the interpreter's
    exit by more than `lifecycle.EXIT_GRACE_SECONDS`. The tasks of a parent process do not run in its child.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        if threads < 1:
            raise InferError(f"executor {name}: it needs at least 1 thread; got {threads}")
        self.name = name
        self._pool = _Pool(name, threads)
        self._finalizer = weakref.finalize(self, _Pool.close, self._pool)
        self._finalizer.atexit = False
        lifecycle.track(self)

    def submit(self, task: Task) -> None:
        """Queue `task`. A task handles its own errors; one that escapes is logged."""
        self._pool.submit(task)

    def owns_current_thread(self) -> bool:
        """Whether the calling thread is one of this executor's."""
        return threading.current_thread() in self._pool.threads

    def shutdown(self, timeout: float | None = None) -> bool:
        """Refuse new tasks and wait until the queued ones have run; False if `timeout` (s) passes first."""
        self._pool.close()
        return self._pool.join(timeout)

    def _after_fork(self) -> None:
        self._finalizer.detach()
        self._pool = self._pool.renewed()
        self._finalizer = weakref.finalize(self, _Pool.close, self._pool)
        self._finalizer.atexit = False

    def _is_busy(self) -> bool:
        return self._pool.is_busy()

    def _end_exit(self, timeout: float) -> None:
        self.shutdown(timeout)


class _Pool:
    """The queue and threads of a `ThreadExecutor`; threads refer to it rather than to the executor."""

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.threads: list[threading.Thread] = []
        self._tasks: deque[Task] = deque()
        self._idle = 0
        self._stale = 0
        self._closed = False
        self._abandoned = False
        # The lock is reentrant because a garbage collection while it is held may run an executor's finalizer.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def submit(self, task: Task) -> None:
        with self._lock:  # not the condition, see `ForkSafeLock`
            if self._closed:
                raise InferError(f"executor {self.name} is shut down and takes no more tasks")
            if len(self._tasks) >= self._idle and len(self.threads) < self.limit:
                self._start_thread()
            self._tasks.append(task)
            try:
                self._changed.notify(1 + self._stale)
            except BaseException:
                # Ctrl-C: the condition may still list a thread that it has woken, and would wake it instead of another.
                self._stale += 1
                raise
            self._stale = 0

    def _start_thread(self) -> None:
        name = f"{self.name}-{len(self.threads)}" if self.limit > 1 else self.name
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as e:
            if not self.threads:
                raise InferError(f"executor {self.name} cannot start a thread: {e}") from e
            return
        self.threads.append(thread)

    def _work(self) -> None:
        if not self._has_place():
            return
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException:
                _log.exception("executor %s: a task raised", self.name)
            # An idle thread must not keep the last task's request and network alive.
            del task

    def _has_place(self) -> bool:
        """Whether the current thread is one of the pool's threads, which are `limit` at most.

        If Ctrl-C interrupts the start of a thread, the thread may run all the same, or never.
        """
        thread = threading.current_thread()
        with self._lock:
            if thread not in self.threads:
                if len(self.threads) >= self.limit:
                    return False
                self.threads.append(thread)
            return True

    def _next(self) -> Task | None:
        if self._abandoned:
            return None
        with self._lock:
            while not self._tasks and not self._closed:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._tasks.popleft() if self._tasks else None

    def is_busy(self) -> bool:
        with self._lock:
            return bool(self._tasks) or self._idle < len(self.threads)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        for thread in list(self.threads):
            if thread is not threading.current_thread():
                thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def renewed(self) -> _Pool:
        self._abandoned = True
        fresh = _Pool(self.name, self.limit)
        fresh._closed = self._closed
        return fresh


_shared: weakref.WeakValueDictionary[str, ThreadExecutor] = weakref.WeakValueDictionary()
_shared_lock = threading.RLock()
os.register_at_fork(
    before=_shared_lock.acquire,
    after_in_parent=_shared_lock.release,
    after_in_child=_shared_lock.release,
)


def shared_executor(key: str) -> ThreadExecutor:
    """The process-wide single-threaded executor of `key`, which exists as long as it is referred to.

    Networks of one device that are compiled with EXCLUSIVE_ASYNC_REQUESTS share it. Thread-safe.
    """
    with _shared_lock:
        executor = _shared.get(key)
        if executor is None:
            executor = _shared[key] = ThreadExecutor(key)
        return executor
