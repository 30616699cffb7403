"""The amount of arithmetic in a model, and tolerances for comparing two correct results of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx

Shape = tuple[int, ...]


def floating_point_operations(model: onnx.ModelProto) -> int:
    """Count the multiplications and additions of the direct algorithms for convolutions, products and recurrences.

    Needs the static shapes of all values in the model, as exporters write them.
    """
    shapes = value_shapes(model)
    return 2 * sum(_multiply_adds(node, shapes) for node in model.graph.node)


def value_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shapes recorded in the model, by name."""
    graph = model.graph
    stated = {
        info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in (*graph.input, *graph.output, *graph.value_info)
    }
    return stated | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def reduction_lengths(model: onnx.ModelProto) -> list[int]:
    """The number of products that each convolution, product and step of a recurrence sums up."""
    shapes = value_shapes(model)
    lengths = []
    for node in model.graph.node:
        count = _multiply_adds(node, shapes)
        if count:
            produced = math.prod(shapes[next(name for name in node.output if name)])
            lengths.append(max(1, count // max(produced, 1)))
    return lengths


def rounding_tolerance(model: onnx.ModelProto) -> float:
    """Give the largest deviation of two correct float32 results, relative to the largest absolute value.

    A dot product of length K, summed in any order, is off by about u sqrt(K) of its own spread, u being the unit
    roundoff 2**-24, and the errors of layers are independent: u sqrt(sum of K) for one result; see
    `engine.testing.models.light_tolerance`. The additional factor of 8 is 2 for two results times 4 for the transforms
    of Winograd convolutions, which sum larger numbers that cancel.
    """
    return 4 * float(np.finfo(np.float32).eps) * math.sqrt(1 + sum(reduction_lengths(model)))


def storage_tolerance(model: onnx.ModelProto, unit: float) -> float:
    """Give the largest deviation of a result whose weights and values are stored in a type of unit roundoff `unit`.

    It is relative to the largest absolute value. Each operation reads weights and stores a result with errors of up to
    `unit`; the errors of operations are independent, so n operations have an error of about unit sqrt(2 n). A factor of
    2 is for layers that amplify differences, such as normalizations.
    """
    return 2 * unit * math.sqrt(2 * len(model.graph.node))


def _multiply_adds(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    if node.op_type == "Conv":
        return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":
        return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type in ("MatMul", "Gemm"):
        return math.prod(shapes[node.output[0]]) * _inner_length(node, shapes[node.input[0]])
    if node.op_type in ("LSTM", "GRU", "RNN"):
        steps, batch, _ = shapes[node.input[0]]
        weights = math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]])
        return steps * batch * weights
    return 0


def _inner_length(node: onnx.NodeProto, first: Shape) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return first[0] if transposed else first[-1]
