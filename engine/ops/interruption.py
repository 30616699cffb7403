"""Interruption of long evaluations: a check before every node of a body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Check: TypeAlias = Callable[[], object]


class _Thread(threading.local):
    """The check of evaluations in this thread."""

    check: Check | None = None


_thread = _Thread()


@contextmanager
def interruptible(check: Check) -> Iterator[None]:
    """Inside the block, evaluations in this thread call `check` before each iteration and node of a body.

    An `InferError` that it raises ends the evaluation and reaches the caller unchanged. This makes endless loops
    cancellable. `check` must be cheap.
    """
    outer = _thread.check
    _thread.check = check
    try:
        yield
    finally:
        _thread.check = outer


def current_check() -> Check | None:
    """The function that evaluations in this thread should call; None outside of `interruptible`."""
    return _thread.check
