"""Snapshots: the model after each pass that changed it, as text, ONNX and picture."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import PassError
from engine.ir import Model
from engine.onnx import write_model
from engine.passes.common.visualize_tree import write_picture


class Snapshots:
    """Numbers and writes the snapshots of one manager into `folder` (made if missing)."""

    __slots__ = ("_count", "_folder", "_label")

    def __init__(self, folder: Path, label: str) -> None:
        self._folder = folder
        self._label = label
        self._count = 0

    def take(self, model: Model, pass_name: str) -> None:
        """Write `NNN_pass.txt`, `.onnx` and `.svg`. Raises `PassError` where the folder cannot be written."""
        stem = re.sub(r"[^\w.-]+", "_", f"{self._label}_{self._count:03d}_{pass_name}")
        self._count += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{stem}.txt").write_text(model.to_text() + "\n", encoding="utf-8")
            write_picture(model, self._folder / f"{stem}.svg")
            write_model(model, self._folder / f"{stem}.onnx")
        except OSError as e:
            raise PassError(f"snapshots cannot be written to {self._folder}: {e}") from e
