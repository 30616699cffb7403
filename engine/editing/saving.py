"""`save`: a model as an ONNX file."""

from __future__ import annotations

import os

from engine.editing.half_weights import with_half_weights
from engine.ir import Model
from engine.onnx import write_model


def save(model: Model, path: str | os.PathLike[str], *, f16: bool, external_data: int | None) -> None:
    """The implementation of `Model.save`, which documents it."""
    write_model(with_half_weights(model) if f16 else model, path, external_data=external_data)
