"""How much of the machine other processes use."""

from __future__ import annotations

import os
from typing import Final

_STATISTICS: Final = "/proc/stat"
_IDLE: Final = (3, 4)
"""The fields of a processor's times in which it does nothing, and waits for disks."""


class OtherLoad:
    """Measures the share of processor time that other processes use, from the creation of the object on.

    Processes that this one has started count as its own once they have ended. If the system does not report it, the
    share is 0. Resolution: 10 ms of processor time.
    """

    def __init__(self) -> None:
        self._before = _times()

    def share(self) -> float:
        """From 0 to 1; time taken by a hypervisor counts as used by others."""
        after = _times()
        if self._before is None or after is None:
            return 0.0
        all_time, busy, own = (new - old for new, old in zip(after, self._before, strict=True))
        return min(1.0, max(0.0, busy - own) / all_time) if all_time > 0 else 0.0


def _times() -> tuple[float, float, float] | None:
    """Seconds of all processors since the machine started: all, busy ones, and this process's."""
    try:
        with open(_STATISTICS, encoding="ascii") as file:
            fields = [int(word) for word in file.readline().split()[1:9]]
        second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    if len(fields) < 8:
        return None
    idle = sum(fields[index] for index in _IDLE)
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return sum(fields) / second, (sum(fields) - idle) / second, mine
