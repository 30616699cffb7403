"""What breaks if these fail: a network gives other results once it is exported and imported.

A folded Transpose is a view of other data, and an export stores its elements in order. The layout of a matrix decides
in which order BLAS and numpy add up, so both networks have to compute with the same one. So does its address: a tensor
in a file begins at any byte, and numpy multiplies by BLAS only where it is aligned.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Node, Parameter, Result, boolean, f32, f64, i64

Array = NDArray[Any]
SHAPE = (5, 2, 37)


def turned(element_type: ElementType, *shape: int) -> Node:
    """Weights whose last two axes the model swaps, which is folded."""
    drawn = np.random.default_rng(shape).uniform(-1, 1, (*shape[:-2], shape[-1], shape[-2])).astype(element_type.numpy)
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return ops.Transpose(Constant(drawn), perm=axes)


def product(x: Node, t: ElementType) -> Node:
    return ops.MatMul(x, turned(t, 37, 41))


def sums(x: Node, t: ElementType) -> Node:
    return ops.ReduceSum(ops.Mul(turned(t, 7, 33, 37), ops.ReduceMax(x)), Constant([0, 1, 2]))


def recurrent(op_type: str) -> Callable[[Node, ElementType], Node]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]

    def build(x: Node, t: ElementType) -> Node:
        weights = turned(t, 1, gates * 21, 37), turned(t, 1, gates * 21, 21)
        return ops.create(op_type, [x, *weights], {"hidden_size": 21}, num_outputs=2)

    return build


def loop(x: Node, t: ElementType) -> Node:
    i, go, state = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(t, SHAPE, "s")
    body = Model([go, ops.Tanh(ops.MatMul(state, turned(t, 37, 37)))], [i, go, state], name="body")
    return ops.create("Loop", [Constant(np.array(3)), None, x], {"body": body})


@pytest.mark.parametrize("element_type", [f32, f64], ids=str)
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize(
    "build", [product, sums, recurrent("LSTM"), recurrent("GRU"), recurrent("RNN"), loop],
    ids=["product", "sums", "LSTM", "GRU", "RNN", "loop"],
)  # fmt: skip
def test_bit_for_bit(build: Callable[[Node, ElementType], Node], device: str, element_type: ElementType) -> None:
    x = Parameter(element_type, SHAPE, "x")
    node = build(x, element_type)
    model = Model([Result(value, f"y{index}") for index, value in enumerate(node.outputs)], [x])
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(element_type.numpy)}
    network, stream = Core().compile_model(model, device), io.BytesIO()
    network.export_model(stream)
    found, again = network(feeds), Core().import_model(stream.getvalue(), device)(feeds)
    for index in range(len(network.outputs)):
        assert found[index].tobytes() == again[index].tobytes(), index


@pytest.mark.parametrize("op_type", ["MatMul", "LSTM"])
@pytest.mark.parametrize("offset", range(4))
def test_tensors_at_any_byte_of_the_file(op_type: str, offset: int) -> None:
    rng = np.random.default_rng(2)
    shapes = {"MatMul": [(37, 41)], "LSTM": [(1, 84, 37), (1, 84, 21)]}[op_type]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    names = ["w" + "_" * offset, "r"]
    weights = [
        numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name)
        for name, shape in zip(names, shapes, strict=False)
    ]
    options = {"hidden_size": 21} if op_type == "LSTM" else {}
    node = helper.make_node(op_type, ["x", *(each.name for each in weights)], ["y"], **options)
    graph = helper.make_graph([node], "g", [x], [y], weights)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    feeds = {"x": rng.uniform(-1, 1, SHAPE).astype(np.float32)}
    network, stream = Core().compile_model(content, "TEMPLATE"), io.BytesIO()
    network.export_model(stream)
    assert network(feeds)[0].tobytes() == Core().import_model(stream.getvalue())(feeds)[0].tobytes()
