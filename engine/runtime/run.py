"""The state of one inference of an asynchronous request, from its start until its waiters are woken."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import CallbackError, Cancelled, EngineError, InferError
from engine.runtime.lifecycle import lifecycle
from engine.runtime.result import InferResult

if TYPE_CHECKING:
    import asyncio

    from engine.runtime.deadlines import Deadline

_log = logging.getLogger("engine.runtime")


class RequestState(enum.Enum):
    """Whether a request is idle, runs an inference, or was cancelled."""

    IDLE = "idle"
    BUSY = "busy"
    CANCELLED = "cancelled"
    """Cancelled; it becomes idle when the running stage checks for cancellation, or ends."""


class CallbackFailure:
    """An exception of a callback. If this object is freed before `take`, the exception is logged with its traceback."""

    __slots__ = ("_error",)

    def __init__(self, where: str, error: BaseException) -> None:
        self._error: CallbackError | None = CallbackError(f"{where} raised {type(error).__name__}: {error}")
        self._error.__cause__ = error

    def take(self) -> CallbackError | None:
        """Return the error, only once, for raising it."""
        error, self._error = self._error, None
        return error

    def report(self) -> None:
        """Log the error unless it was already taken or logged, or reports a refusal at exit."""
        error = self.take()
        if error is not None and not (lifecycle.is_exiting and isinstance(error.__cause__, Cancelled)):
            _log.error("%s; the error reached no waiter", error, exc_info=error)

    __del__ = report


class Run:
    """One inference of a request, from its start until its waiters are woken."""

    __slots__ = (
        "callback", "callback_failure", "cancellation", "deadline", "ended", "error", "gates", "has_begun", "is_done",
        "result", "step", "thread", "traceback", "waiters",
    )  # fmt: skip

    def __init__(self, callback: Callable[[Any, EngineError | None], object] | None) -> None:
        self.callback = callback
        self.callback_failure: CallbackFailure | None = None
        self.cancellation: EngineError | None = None
        self.deadline: Deadline | None = None
        self.ended = False  # the request is idle again
        self.gates: list[threading.Lock] = []  # held, one for each waiting thread
        self.is_done = False  # and its callback has returned
        self.error: EngineError | None = None
        self.has_begun = False
        self.result: InferResult | None = None
        self.step = 0
        self.thread: int | None = None
        self.traceback: Any = None
        self.waiters: list[asyncio.Future[None]] = []

    def outcome(self) -> InferResult:
        """Return the result, or raise the error, whose traceback does not grow with each call."""
        error = self.error
        if error is None:
            assert self.result is not None
            return self.result
        try:
            raise error.with_traceback(self.traceback)
        finally:
            del self, error


def wake(future: asyncio.Future[None]) -> None:
    """Wake the awaiting task. Runs on its event loop."""
    if not future.done():
        future.set_result(None)


def require_callable(callback: object) -> None:
    """Raise `InferError` if `callback` is neither None nor callable."""
    if callback is not None and not callable(callback):
        raise InferError(f"a callback must be a function, or None for no callback; got {callback!r}")


def seconds(value: float, what: str, *, zero: bool = False) -> float:
    """Return a user's time limit. Raises `InferError` unless it is positive, or 0 with `zero`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value > 0 or (zero and value == 0)):
        least = "0 or more" if zero else "more than 0"
        raise InferError(f"{what} must be in seconds, {least}, or None; got {value!r}")
    return float(min(value, threading.TIMEOUT_MAX))
