"""A process that runs one engine and executes `comparison.commands`.

Between two commands, the process is blocked on a read; only threads that the engine keeps running can use CPU time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from comparison.engines import Setup
from engine.cli.benchmark.worker import Worker as EngineWorker
from engine.cli.benchmark.worker import WorkerError

__all__ = ["Worker", "WorkerError"]

_CODE: Final = "from comparison.commands import main; main()"
_BENCHMARKS: Final = Path(__file__).resolve().parent.parent


class Worker(EngineWorker):
    """The caller's side. `paths` are searched for packages before those that are installed."""

    def __init__(self, engine: str, setup: Setup, paths: Sequence[Path] = ()) -> None:
        super().__init__(engine, _CODE, [_BENCHMARKS, *paths])
        self._engine, self._setup = engine, setup

    def start(self) -> dict[str, Any]:
        """Import the engine; return its version, its configuration, and the memory of the process afterwards."""
        fields = ("threads", "precision", "streams", "device", "effort")
        return self.call("start", engine=self._engine, **{name: getattr(self._setup, name) for name in fields})
