"""onnxruntime's Python interface on this engine's devices, for code that is written against it.

    import engine.session as onnxruntime

    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": array})

A feature that this engine lacks or has differently is an error, or an `EngineWarning` if results stay the same; see
docs/from-onnxruntime.md. New code uses `engine.Core`, which has more.
"""

from __future__ import annotations

from engine.session.arguments import ModelMetadata, NodeArg
from engine.session.binding import IOBinding
from engine.session.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from engine.session.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from engine.session.providers import get_all_providers, get_available_providers, get_device
from engine.session.replacement import replace_onnxruntime
from engine.session.session import InferenceSession
from engine.session.values import OrtValue

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata",
    "NodeArg", "OrtValue", "RunOptions", "SessionOptions", "disable_telemetry_events", "enable_telemetry_events",
    "get_all_providers", "get_available_providers", "get_device", "preload_dlls", "replace_onnxruntime",
    "set_default_logger_severity", "set_default_logger_verbosity",
]  # fmt: skip
