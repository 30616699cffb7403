"""Pauses Python's garbage collector while modules are imported, or a large graph is built."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


@contextmanager
def paused_collector() -> Iterator[None]:
    """Disable garbage collection in a block that creates many objects.

    A collection visits every live object. For a graph of 100,000 nodes, all of them reachable, that takes two thirds of
    the time and frees nothing; while modules are imported, a tenth. The pause is process-wide, so it affects other
    threads too.
    """
    enabled, modules = gc.isenabled(), len(sys.modules)
    if enabled:
        _pauses.append(None)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if len(sys.modules) > modules + _MANY_MODULES:
                _promote()
            gc.enable()
            if _pauses:
                _pauses.pop()


def _after_fork() -> None:
    """End the pauses of other threads, which do not exist in the child: nothing else would end them."""
    if _pauses:
        _pauses.clear()
        gc.enable()


_pauses: Final[list[None]] = []
"""One for each pause that has to end with an enabled collector; appending and popping are atomic."""
os.register_at_fork(after_in_child=_after_fork)

_MANY_MODULES: Final = 8
"""So many new modules have created tens of thousands of objects."""


def _promote() -> None:
    """Put all objects into the oldest generation, which takes no time, instead of visiting them in the next collection.

    Only after many modules were imported, whose objects stay. A process does that a few times; were it done after each
    pause, the collector would not notice that old objects become many, and garbage would stay, too.
    """
    if gc.get_freeze_count() == 0:  # a program may have frozen objects, and they stay frozen
        gc.freeze()
        gc.unfreeze()
