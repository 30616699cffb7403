"""A model with all its f32 as f64, which decides between two results in f32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from publishing.inputs import Feed

_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def widened(path: Path) -> onnx.ModelProto:
    """The model in f64. Operators that have no f64, such as quantization, make it a model that cannot be read."""
    model = onnx.load(path)
    for graph in _graphs(model.graph):
        _widen(graph)
    for function in model.functions:
        for node in function.node:
            _widen_node(node)
    return model


def widened_feed(feed: Feed) -> Feed:
    """Inputs for the model in f64."""
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feed.items()}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _widen(graph: onnx.GraphProto) -> None:
    scales = {node.input[2] for node in graph.node if node.op_type == "Resize" and len(node.input) > 2}
    for tensor in graph.initializer:
        if tensor.name not in scales:  # Resize's are always f32
            _widen_tensor(tensor)
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == _FLOAT:
            value.type.tensor_type.elem_type = _DOUBLE
    for node in graph.node:
        if not (node.op_type == "Constant" and node.output[0] in scales):
            _widen_node(node)


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.array(values, np.float64))
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
        elif attribute.name in ("to", "dtype") and attribute.i == _FLOAT:
            attribute.i = _DOUBLE


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
