"""The seeded networks for any batch, in the form that exporters write for a dynamic one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]


def with_any_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a network for a batch of 1 whose inputs and outputs have a batch that is not known.

    The first axis of each input and output must be the batch, and the first axis of a Reshape to a constant shape the
    batch or a multiple of it. A constant that a Concat joins to a value, such as the embedding of a class, is repeated,
    and a Resize to constant sizes keeps the batch of its input. Constants that have the batch in another place, such as
    initial states, are not changed.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    graph.ClearField("value_info")
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims:
            dims[0].Clear()
            dims[0].dim_param = "batch"
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in constants:
            _keep_batch(constants[node.input[1]])
        if node.op_type == "Concat":
            nodes += _repeated(node, constants)
        if node.op_type == "Resize" and len(node.input) == 4 and node.input[3] in constants:
            nodes += _resized(node, constants[node.input[3]])
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def repeated(inputs: Mapping[str, Array], batch: int) -> dict[str, Array]:
    """The inputs of a network for a batch of 1 as inputs for a larger batch, whose parts all differ."""
    return {
        name: np.concatenate([np.roll(value, part, axis=-1) for part in range(batch)]) for name, value in inputs.items()
    }


def _keep_batch(shape: onnx.TensorProto) -> None:
    lengths = numpy_helper.to_array(shape).copy()
    if lengths.size and lengths[0] > 0:
        lengths[0] = 0 if -1 in lengths else -1
        shape.CopyFrom(numpy_helper.from_array(lengths, shape.name))


def _repeated(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    """The nodes that repeat the constants of a Concat along the batch; the Concat reads their results."""
    made: list[onnx.NodeProto] = []
    other = next((name for name in node.input if name not in constants), None)
    if other is None or helper.get_node_attr_value(node, "axis") == 0:
        return []
    for index, name in enumerate(node.input):
        if name in constants and constants[name].dims[:1] == [1]:
            prefix = f"{node.output[0]}_{index}"
            ones = numpy_helper.from_array(np.ones(len(constants[name].dims) - 1, np.int64))
            made += [
                helper.make_node("Shape", [other], [f"{prefix}_batch"], start=0, end=1),
                helper.make_node("Constant", [], [f"{prefix}_ones"], value=ones),
                helper.make_node("Concat", [f"{prefix}_batch", f"{prefix}_ones"], [f"{prefix}_shape"], axis=0),
                helper.make_node("Expand", [name, f"{prefix}_shape"], [f"{prefix}_repeated"]),
            ]
            node.input[index] = f"{prefix}_repeated"
    return made


def _resized(node: onnx.NodeProto, sizes: onnx.TensorProto) -> list[onnx.NodeProto]:
    """The nodes that compute the sizes of a Resize of all axes but the batch; the Resize reads their result."""
    prefix, rest = node.output[0], numpy_helper.from_array(numpy_helper.to_array(sizes)[1:])
    made = [
        helper.make_node("Shape", [node.input[0]], [f"{prefix}_batch"], start=0, end=1),
        helper.make_node("Constant", [], [f"{prefix}_rest"], value=rest),
        helper.make_node("Concat", [f"{prefix}_batch", f"{prefix}_rest"], [f"{prefix}_sizes"], axis=0),
    ]
    node.input[3] = f"{prefix}_sizes"
    return made
