"""`CancelFlag`: stops runs of plans."""

from __future__ import annotations

from engine.native.extension import _core


class CancelFlag:
    """Stops the runs to which it was passed, between two steps. Any thread may set it."""

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = _core.CancelFlag()

    def cancel(self) -> None:
        """Make the runs stop."""
        self._flag.cancel()

    def reset(self) -> None:
        """Make the flag usable again."""
        self._flag.reset()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called since the last `reset`."""
        return self._flag.cancelled
