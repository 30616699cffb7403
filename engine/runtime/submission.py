"""`Submissions`: inferences as `concurrent.futures.Future`s, over few requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from engine.errors import Cancelled, EngineError, InferError
from engine.runtime.async_request import AsyncInferRequest
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.runtime.result import InferResult

if TYPE_CHECKING:
    from typing import Any


class InferFuture(Future[InferResult]):
    """The future result of one inference. Unlike other futures, it can be cancelled while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._request: AsyncInferRequest | None = None

    def cancel(self) -> bool:
        """Cancel the inference: at once if it has not begun, which returns True; otherwise like
        `AsyncInferRequest.cancel`.

        A running one ends with the error `Cancelled` at its next check, or with its result if it is done before.
        """
        if super().cancel():
            return True
        request = self._request
        if request is not None and not self.done():
            request.cancel()
        return False

    def abandon(self, error: EngineError) -> None:
        """End with an error in a child process, where a thread of the parent may have left the future locked."""
        self._condition = threading.Condition()
        if not self.done():
            self.set_exception(error)


class Submissions(Participant):
    """Inferences that wait for one of at most `limit` requests, in order. Thread-safe.

    `create` makes a request; `reset` makes it as new before its next inference.
    """

    def __init__(
        self,
        create: Callable[[], AsyncInferRequest],
        reset: Callable[[AsyncInferRequest], object],
        limit: int,
        name: str,
    ) -> None:
        self._create, self._reset, self._limit, self._name = create, reset, limit, name
        self._lock = ForkSafeLock()
        self._waiting: deque[tuple[InferFuture, Any, float | None]] = deque()
        self._idle: list[AsyncInferRequest] = []
        self._running: dict[AsyncInferRequest, InferFuture] = {}
        self._made = 0
        lifecycle.track(self)

    def submit(self, inputs: object, deadline: float | None) -> InferFuture:
        """The implementation of `HostedNetwork.submit`, which documents it."""
        lifecycle.refuse_at_exit(self._name)
        future = InferFuture()
        with self._lock:
            request = self._take()  # before anything waits for the request, since this may raise
            self._waiting.append((future, inputs, deadline))
        if request is not None:
            self._start_next(request)
        return future

    def release_idle(self) -> None:
        """Drop the requests that no inference uses."""
        with self._lock:
            self._made -= len(self._idle)
            self._idle.clear()

    def _take(self) -> AsyncInferRequest | None:
        if self._idle:
            return self._idle.pop()
        if self._made >= self._limit:
            return None
        request = self._create()
        request.set_callback(self._finished)
        self._made += 1
        return request

    def _start_next(self, request: AsyncInferRequest) -> None:
        """Start the first waiting inference that was not cancelled and has valid inputs; without one, the request
        becomes idle.
        """
        while True:
            with self._lock:
                if not self._waiting:
                    self._idle.append(request)
                    return
                future, inputs, deadline = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            self._running[request], future._request = future, request
            try:
                request.start_async(inputs, deadline=deadline)
            except BaseException as e:
                self._forget(request, future)
                future.set_exception(e)
                if not isinstance(e, EngineError):
                    with self._lock:
                        self._idle.append(request)
                    raise
                continue
            return

    def _finished(self, request: AsyncInferRequest, error: EngineError | None) -> None:
        future = self._running[request]
        try:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(request.results)
        finally:
            self._forget(request, future)
            self._reset(request)
            self._start_next(request)

    def _forget(self, request: AsyncInferRequest, future: InferFuture) -> None:
        self._running.pop(request, None)
        future._request = None

    def _begin_exit(self) -> None:
        with self._lock:
            left, self._waiting = list(self._waiting), deque()
        for future, _, _ in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(Cancelled(f"{self._name} is cancelled: the interpreter exits"))

    def _after_fork(self) -> None:
        # The requests became usable by themselves; the parent's inferences do not run here.
        error = InferError(f"{self._name} was submitted in the parent process of this one; submit it again")
        for future in (*(each for each, _, _ in self._waiting), *self._running.values()):
            future.abandon(error)
        self._waiting.clear()
        self._idle += self._running
        self._running.clear()
