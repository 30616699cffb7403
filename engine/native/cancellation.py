"""`CancelFlag`, by which another thread stops the runs of plans."""

from __future__ import annotations

from engine.native.extension import _core


class CancelFlag:
    """Stops the runs to which it was passed, between two steps. Any thread may set it."""

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = _core.CancelFlag()

    def cancel(self) -> None:
        """Stop the runs that have the flag, each after its current step, and those that start later."""
        self._flag.cancel()

    def reset(self) -> None:
        """Clear the flag, so that later runs are not stopped."""
        self._flag.reset()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called since the last `reset`."""
        return self._flag.cancelled
