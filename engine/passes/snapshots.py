"""Snapshots: the model after each pass that changed it, as text, ONNX and picture."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.errors import EngineError, PassError
from engine.ir import Model
from engine.passes.settings import is_on

TRACING: Final = "ENGINE_ENABLE_VISUALIZE_TRACING"
ALL_FORMATS: Final = ("txt", "onnx", "svg")
_KNOWN: Final = frozenset({*ALL_FORMATS, "dot"})

_log = logging.getLogger("engine.passes")


class Snapshots:
    """Numbers and writes the snapshots of a run into `folder` (created if missing); see `Manager`.

    Raises `PassError` for an unknown format.
    """

    __slots__ = ("_count", "_folder", "_formats", "_is_restarted")

    def __init__(self, folder: Path, formats: Sequence[str] = ALL_FORMATS, *, is_restarted: bool = True) -> None:
        unknown = [name for name in formats if name not in _KNOWN]
        if unknown:
            raise PassError(f"unknown snapshot format {unknown[0]!r}; expected {', '.join(sorted(_KNOWN))}")
        self._folder = folder
        self._formats = formats
        self._is_restarted = is_restarted
        self._count = 0

    def begin(self, model: Model, manager: str) -> None:
        """Write the model before the first pass. Restarts the numbering."""
        if self._is_restarted:
            self._count = 0
        self.take(model, manager, "start")

    def take(self, model: Model, manager: str, what: str) -> None:
        """Write `NNN_manager_what` in every format. Raises `PassError` if the folder is not writable."""
        stem = re.sub(r"[^\w.-]+", "_", f"{self._count:03d}_{manager}_{what}")
        self._count += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in self._formats:
                self._write(model, self._folder / f"{stem}.{name}")
        except OSError as e:
            raise PassError(f"snapshots cannot be written to {self._folder}: {e}") from e

    def _write(self, model: Model, path: Path) -> None:
        if path.suffix == ".txt":
            path.write_text(model.to_text() + "\n", encoding="utf-8")
        elif path.suffix == ".onnx":
            from engine.onnx import write_model

            try:
                write_model(model, path)
            except EngineError as e:  # between two passes a model may contain operators that ONNX cannot express
                _log.warning("no snapshot %s: %s", path, e)
        else:
            from engine.passes.pictures import write_picture

            write_picture(model, path)


_tracing: Snapshots | None = None


def tracing() -> Snapshots | None:
    """The snapshots of `ENGINE_ENABLE_VISUALIZE_TRACING`: in the current folder, numbered across runs."""
    global _tracing
    if not is_on(TRACING):
        _tracing = None
    elif _tracing is None or _tracing._folder != Path.cwd():
        _tracing = Snapshots(Path.cwd(), is_restarted=False)
    return _tracing
