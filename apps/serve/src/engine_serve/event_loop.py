"""`when_done`: calls in an event loop at the end of work on another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def when_done(future: Future[Any] | None, call: Callable[[], None]) -> None:
    """Call in this event loop: now, or when a future is done whose caller no longer waits."""
    if future is None or future.done():
        call()
        return
    loop = asyncio.get_running_loop()

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before the device
            loop.call_soon_threadsafe(call)

    future.add_done_callback(done)
