"""Threads on fixed cores, so that the system does not move them during a measurement."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from engine.errors import UnsupportedError

_TASKS = Path("/proc/self/task")


def restrict_to_cores(cores: Sequence[int]) -> None:
    """Let this process run on these logical cores only; before anything is compiled, since it decides the threads.

    Raises `UnsupportedError` if the system cannot, or does not let the process use them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError("this system cannot restrict a process to cores; leave out --cores")
    usable = os.sched_getaffinity(0)
    if missing := sorted(set(cores) - usable):
        raise UnsupportedError(
            f"core {missing[0]} is not usable here; usable: {', '.join(map(str, sorted(usable))) or 'none'}"
        )
    for thread in thread_ids():
        os.sched_setaffinity(thread, set(cores))


def thread_ids() -> set[int]:
    """The system's ids of all threads of this process."""
    try:
        return {int(each.name) for each in _TASKS.iterdir()}
    except OSError:
        return {0}


def pin_new_threads(before: set[int], cores: Sequence[int]) -> int:
    """Fix the calling thread and each thread that native code has started since `before` to one core; return how many.

    The caller also computes, and has the first core. Threads of Python are left alone.
    """
    python = {each.native_id for each in threading.enumerate()}
    started = [threading.get_native_id(), *sorted(thread_ids() - before - python)]
    for position, thread in enumerate(started):
        os.sched_setaffinity(thread, {cores[position % len(cores)]})
    return len(started)
