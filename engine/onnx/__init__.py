"""Import and export of ONNX models: `read_model`, `write_model`, `model_to_proto`; for blobs, `split_model`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from engine.files import ModelSource
from engine.onnx.importer import read_model
from engine.onnx.parts import Section, join_model, split_model

if TYPE_CHECKING:
    from engine.onnx.exporter import model_to_proto
    from engine.onnx.writer import write_model

__all__ = [
    "ModelSource", "Section", "join_model", "model_to_proto", "read_model", "split_model", "write_model",
]  # fmt: skip

# Loaded on first use: most processes read models but write none.
_HOMES = {"model_to_proto": "engine.onnx.exporter", "write_model": "engine.onnx.writer"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
