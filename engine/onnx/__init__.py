"""ONNX models in and out: `read_model`, `write_model`, `model_to_proto`; and the parts of a blob, `split_model`."""

from engine.onnx.exporter import model_to_proto
from engine.onnx.importer import read_model
from engine.onnx.parts import Section, join_model, split_model
from engine.onnx.source import ModelSource
from engine.onnx.writer import write_model

__all__ = [
    "ModelSource", "Section", "join_model", "model_to_proto", "read_model", "split_model", "write_model",
]  # fmt: skip
