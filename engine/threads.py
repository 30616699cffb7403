"""Working in threads and waiting for them, which stay usable after Ctrl-C at any moment.

CPython raises `KeyboardInterrupt` in the main thread between any two instructions. `threading.Condition`, and what is
made of it (`Event`, `Semaphore`, `concurrent.futures`), consists of Python code: an interrupt after it has acquired its
lock, before the block that releases it, leaves the lock taken, so that other threads wait forever; one while it waits
raises `RuntimeError` or releases the lock of another thread. The locks of `threading`, used by `with` or alone, are
written in C and have no such moments.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Signal:
    """A condition that threads wait for, like a `threading.Condition`, with a C lock that its owner also uses.

    Args:
        lock: guards what the threads wait for. It is reentrant if the collector may run code that takes it.
    """

    __slots__ = ("_gates", "_lock")

    def __init__(self, lock: threading.Lock | threading.RLock) -> None:
        self._lock = lock
        self._gates: list[threading.Lock] = []

    def wait_for(self, found: Callable[[], ResultT], timeout: float | None = None) -> ResultT:
        """The first result of `found` that is true; the last one if `timeout` (s) passes.

        `found` runs with the lock held, first at once and then after each `notify_all`. The caller does not hold it.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            gate = threading.Lock()
            gate.acquire()
            with self._lock:
                result = found()
                if result:
                    return result
                self._gates.append(gate)
            is_open = False
            try:
                is_open = gate.acquire(timeout=-1.0 if end is None else max(0.0, end - time.monotonic()))
            finally:
                if not is_open:
                    with self._lock, suppress(ValueError):
                        self._gates.remove(gate)
            if not is_open:
                with self._lock:
                    return found()

    def notify_all(self) -> None:
        """Have all waiting threads look again. The caller holds the lock."""
        # After an interrupted call, the next one opens the rest; a gate at which no one waits any longer does no harm.
        for gate in self._gates:
            if gate.locked():
                gate.release()
        self._gates.clear()


def start_thread(thread: threading.Thread) -> None:
    """`thread.start()`, except that Ctrl-C meanwhile raises `KeyboardInterrupt`, not an error of the interrupted wait.

    The thread then also runs, or never runs. Raises `RuntimeError` if the system has no more threads.
    """
    try:
        thread.start()
    except RuntimeError as e:
        if isinstance(e.__context__, KeyboardInterrupt):
            raise e.__context__ from None
        raise


def in_threads(function: Callable[[ItemT], ResultT], items: Sequence[ItemT], most: int, name: str) -> list[ResultT]:
    """`[function(item) for item in items]`, computed by at most `most` threads called `name`-0 and so on.

    Raises the exception of the first item that has one, once the items that have begun are done; others do not begin.
    An interrupt of the caller is raised in the same way.
    """
    crew = _Crew(function, items)
    try:
        for index in range(min(len(items), most)):
            if not crew.add(f"{name}-{index}"):
                break
        crew.wait()
    finally:
        crew.dismiss()
    return crew.outcome()


class _Crew(Generic[ItemT, ResultT]):
    """The threads that compute the results of some items."""

    def __init__(self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> None:
        self._function = function
        self._left = deque(enumerate(items))
        self._results: dict[int, ResultT] = {}
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._gates: list[threading.Lock] = []
        """One for each thread that has begun, which it opens at its end."""
        self._is_dismissed = False
        self._count = len(items)
        self._all_done = threading.Lock()
        """Opened once no item is left to wait for."""
        self._all_done.acquire()

    def add(self, name: str) -> bool:
        """Start a thread; False if the system has no more."""
        try:
            context = copy_context()  # what watches a compilation, watches what it does in threads
            start_thread(threading.Thread(target=context.run, args=(self._work,), name=name, daemon=True))
        except RuntimeError:
            if name.endswith("-0"):
                self._work()  # there is not even one
            return False
        return True

    def wait(self) -> None:
        """Wait until all items are done, or one has failed."""
        if self._count:
            self._all_done.acquire()

    def dismiss(self) -> None:
        """Begin no more items, and wait for those that have begun.

        A thread whose start was interrupted may never run, so only items that have begun are waited for.
        """
        self._left.clear()
        with self._lock:
            self._is_dismissed = True
        for gate in self._gates:
            with gate:
                pass

    def outcome(self) -> list[ResultT]:
        """All results, or the error of the first item that has one."""
        if self._errors:
            try:
                raise self._errors[min(self._errors)]
            finally:
                self._errors.clear()  # its traceback refers to this
        return [self._results[index] for index in range(self._count)]

    def _work(self) -> None:
        gate = threading.Lock()
        with gate:
            with self._lock:
                if self._is_dismissed:
                    return
                self._gates.append(gate)
            while True:
                try:
                    index, item = self._left.popleft()
                except IndexError:
                    return
                self._do(index, item)

    def _do(self, index: int, item: ItemT) -> None:
        try:
            self._results[index] = self._function(item)
        except BaseException as e:
            self._errors[index] = e
        with self._lock:
            is_over = bool(self._errors) or len(self._results) == self._count
            if is_over and self._all_done.locked():
                self._all_done.release()
