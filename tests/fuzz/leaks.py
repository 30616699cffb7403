"""Counts that must not grow from case to case: threads, files, temporary files, requests, memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

from engine.runtime.lifecycle import lifecycle

from .finding import Finding

SETTLE_SECONDS = 10.0
WARM_CASES = 25
"""Cases after which caches, thread pools and the allocator have what they need."""
SLACK = 6
"""Threads and files that kept networks may need on top of that when more of their requests overlap."""
WINDOW = 25
MEMORY_GROWTH = 96 << 20
"""The bytes by which the minimum memory of a window of cases may exceed the first window's."""


class Watch:
    """Watches the process over many cases."""

    def __init__(self) -> None:
        self._cases = 0
        self._threads = 0
        self._files = 0
        self._participants = 0
        self._memory: list[int] = []

    def check(self) -> None:
        """Check the counts after a case that has dropped its objects. Raises `Finding`."""
        self._cases += 1
        if self._cases <= WARM_CASES:
            gc.collect()
            self._threads = max(self._threads, threading.active_count())
            self._files = max(self._files, _files())
            self._participants = max(self._participants, len(lifecycle.live()))
            return
        end = time.monotonic() + SETTLE_SECONDS
        # Executors stop their threads when they are freed, which takes a moment.
        while (found := self._too_many()) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.05)
        if found:
            self._threads, self._files = threading.active_count(), _files()  # report it once
            self._participants = len(lifecycle.live())
            raise Finding("leak", found)
        self._memory.append(_resident())
        if len(self._memory) >= 2 * WINDOW and len(self._memory) % WINDOW == 0:
            grown = min(self._memory[-WINDOW:]) - min(self._memory[:WINDOW])
            if grown > MEMORY_GROWTH:
                raise Finding("memory grows", f"by {grown >> 20} MiB over {len(self._memory)} cases")

    def _too_many(self) -> str:
        names = sorted(thread.name for thread in threading.enumerate())
        if len(names) > self._threads + SLACK:
            return f"{len(names)} threads, of which {self._threads} were there after {WARM_CASES} cases: {names}"
        if _files() > self._files + SLACK:
            return f"{_files()} open files, of which {self._files} were there after {WARM_CASES} cases"
        # The kept networks create requests as more of them are used at a time.
        if len(lifecycle.live()) > self._participants + 64:
            return f"{len(lifecycle.live())} requests and executors, {self._participants} after {WARM_CASES} cases"
        return ""


def check_no_files(folder: Path, allowed: set[str]) -> None:
    """Raise `Finding` if a folder has files that nobody asked for, such as temporary ones."""
    left = sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name not in allowed)
    if left:
        raise Finding("temporary files", f"left in the folder: {left}")


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
