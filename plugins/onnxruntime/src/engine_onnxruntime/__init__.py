"""ONNXRUNTIME: the execution providers of onnxruntime as devices."""

from engine_onnxruntime.plugin import OnnxRuntimePlugin

__all__ = ["OnnxRuntimePlugin"]
