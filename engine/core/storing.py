"""Stores networks some time after they were compiled, when they have computed their first results."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from engine.runtime.lifecycle import ForkSafeLock
from engine.threads import start_thread

DELAY_SECONDS: Final = 1.0
"""How long after its compilation a network is stored: the first inferences need all cores."""
_MAX_WAITING: Final = 4
_LOW_PRIORITY: Final = 5
"""A third of the time of another thread that wants the core."""
_NAME: Final = "engine-cache"
_log = logging.getLogger(_NAME.replace("-", "."))
_one_at_a_time = ForkSafeLock()


def store_later(store: Callable[[], None]) -> None:
    """Call `store`, which raises nothing, in a thread of low priority; at once when the main thread ends.

    The interpreter's exit waits for it, so that a program that runs for less than a second stores its networks, too.
    A program that compiles faster than that stores its networks itself, since those that wait take memory.
    """
    if sum(each.name == _NAME for each in threading.enumerate()) >= _MAX_WAITING:
        store()
        return
    thread = threading.Thread(target=_run, args=(store,), name=_NAME, daemon=False)
    try:
        start_thread(thread)
    except RuntimeError as e:  # there are no more threads, or the interpreter exits
        _log.info("a network is not cached: %s", e)


def wait_until_stored() -> None:
    """Wait until all networks of this process are stored."""
    for thread in threading.enumerate():
        if thread.name == _NAME and thread is not threading.current_thread():
            while thread.ident is None and thread in threading.enumerate():  # about to start
                time.sleep(0.001)
            with suppress(RuntimeError):  # it has an identity a moment before it can be joined
                thread.join()
            while thread.is_alive():
                time.sleep(0.001)


def _run(store: Callable[[], None]) -> None:
    threading.main_thread().join(DELAY_SECONDS)
    # The end of the program waits for this thread, which would never get to run on a busy machine.
    if threading.main_thread().is_alive() and hasattr(os, "setpriority"):
        with suppress(OSError):  # only Linux takes the id of a thread here
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
    with _one_at_a_time:
        store()
