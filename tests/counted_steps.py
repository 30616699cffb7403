"""How many steps a block takes: the lines of Python that run, which no machine changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def counted() -> Iterator[list[int]]:
    """The number of steps inside the block."""
    found, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        found[0] += 1
        return trace

    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
