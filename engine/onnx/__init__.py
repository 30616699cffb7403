"""Import and export of ONNX models: `read_model`, `write_model`, `model_to_proto`; for blobs, `split_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.files import ModelSource
    from engine.onnx.exporter import model_to_proto
    from engine.onnx.importer import read_model
    from engine.onnx.parts import Section, join_model, split_model
    from engine.onnx.writer import write_model
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.files": ["ModelSource"],
        "engine.onnx.exporter": ["model_to_proto"],
        "engine.onnx.importer": ["read_model"],
        "engine.onnx.parts": ["Section", "join_model", "split_model"],
        "engine.onnx.writer": ["write_model"],
    })  # fmt: skip

__all__ = [
    "ModelSource", "Section", "join_model", "model_to_proto", "read_model", "split_model", "write_model",
]  # fmt: skip
