"""`DaemonThreads`: long tasks that do not keep the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from engine.threads import start_thread

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class DaemonThreads:
    """Runs functions in threads of their own. Thread-safe.

    `asyncio.to_thread` is not suitable: the event loop and the interpreter wait for its threads when they end.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock, self._count = name, threading.Lock(), 0

    @property
    def count(self) -> int:
        """How many threads run, including those whose callers no longer wait for the result."""
        return self._count

    async def run(self, function: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Return the result of a function, or raise its error. A cancelled task does not wait for it."""
        future: Future[ResultT] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as e:
                self._add(-1)
                future.set_exception(e)
            else:
                self._add(-1)
                future.set_result(result)

        self._add(1)
        try:
            start_thread(threading.Thread(target=work, name=self._name, daemon=True))
        except BaseException:
            self._add(-1)
            raise
        return await asyncio.wrap_future(future)

    def _add(self, change: int) -> None:
        with self._lock:
            self._count += change
