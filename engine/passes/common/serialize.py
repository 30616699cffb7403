"""`Serialize`: writes the model as ONNX in the middle of a pipeline."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import ModelWriteError, PassError
from engine.ir import Model
from engine.onnx import write_model
from engine.passes.base import ModelPass


class Serialize(ModelPass):
    """Writes the model at this point of the pipeline to an ONNX file; changes nothing."""

    is_transformation = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def run_on_model(self, model: Model) -> bool:
        """Write the file. Raises `PassError` if that fails."""
        try:
            write_model(model, self.path)
        except (OSError, ModelWriteError) as e:
            raise PassError(f"pass Serialize cannot write {self.path}: {e}") from e
        return False
