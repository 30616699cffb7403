"""`PassPipeline`: a pipeline that is built once and runs on many models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.ir import Model
from engine.passes.manager import Manager


class PassPipeline:
    """A device's passes, built when they are first needed and then kept: on a small model, building takes longest.

    Any number of threads may run it at the same time: each uses a manager that no other thread is using.

    Args:
        register: registers the passes with a new manager and configures it, the same way each time.
    """

    def __init__(self, register: Callable[[Manager], object]) -> None:
        self._register: Final = register
        self._idle: Final[list[Manager]] = []

    def run(self, model: Model) -> bool:
        """Run the passes on `model`, in place; True if anything changed. Raises `PassError` as `Manager` does."""
        try:
            manager = self._idle.pop()
        except IndexError:
            manager = Manager()
            self._register(manager)
        changed = manager.run_passes(model)
        self._idle.append(manager)  # not after an error, which may have interrupted a pass
        return changed
