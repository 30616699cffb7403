"""`LimitedLog`: limits the rate of log lines that any client can cause."""

from __future__ import annotations

import logging
import time
from typing import Final

_SECONDS: Final = 10.0

_log = logging.getLogger("engine.serving")


class LimitedLog:
    """Writes a line now, and then at most one in 10 seconds, with the number of lines left out.

    Used by one event loop.
    """

    def __init__(self) -> None:
        self._left_out, self._next = 0, 0.0

    def info(self, message: str, *values: object) -> None:
        """Write a line, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" (and {self._left_out} like it before)" if self._left_out else ""
        self._left_out, self._next = 0, now + _SECONDS
        _log.info(f"{message}%s", *values, more)
