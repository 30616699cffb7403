"""A constant may be at any offset of a model's file, and reach a kernel in any way: plans read it at any address."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine import Core

Array = NDArray[Any]
Nodes = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]

COUNT = 512
"""More elements than what is copied into the proto."""
node = helper.make_node


def stored(name: str, first: int, dtype: Any, rows: int = 1) -> onnx.TensorProto:
    values = (np.arange(rows * COUNT) % 7 + first).astype(dtype)
    return numpy_helper.from_array(values.reshape(rows, COUNT) if rows > 1 else values, name)


def code(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def port(name: str, dtype: Any, shape: Sequence[int | str] = (COUNT,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code(dtype), shape)


def of_branches(dtype: Any) -> Nodes:
    def branch(name: str, first: int) -> onnx.GraphProto:
        made = node("Constant", [], [name], value=stored(f"{name}_value", first, dtype))
        return helper.make_graph([made], name, [], [port(name, dtype)])

    return [node("If", ["c"], ["w"], then_branch=branch("t", 1), else_branch=branch("e", 2))], []


def of_a_loop(dtype: Any) -> Nodes:
    """A loop that returns its initial value if it has no iteration, and otherwise a constant of its body."""
    body = helper.make_graph(
        [node("Identity", ["going"], ["goes"]), node("Constant", [], ["next"], value=stored("made", 3, dtype))],
        "body",
        [port("i", np.int64, []), port("going", np.bool_, []), port("state", dtype)],
        [port("goes", np.bool_, []), port("next", dtype)],
    )
    nodes = [
        node("Cast", ["c"], ["trips"], to=onnx.TensorProto.INT64),
        node("Loop", ["trips", "", "k"], ["w"], body=body),
    ]
    return nodes, [stored("k", 1, dtype)]


def of_a_scan(dtype: Any) -> Nodes:
    body = helper.make_graph(
        [node("Identity", ["k"], ["next"]), node("Add", ["element", "k"], ["made"])],
        "body",
        [port("state", dtype), port("element", dtype)],
        [port("next", dtype), port("made", dtype)],
    )
    made = node("Scan", ["k1", "sequence"], ["w", "all"], body=body, num_scan_inputs=1)
    return [made], [stored("k", 1, dtype), stored("k1", 2, dtype), stored("sequence", 0, dtype, rows=3)]


def of_a_sequence(dtype: Any) -> Nodes:
    nodes = [
        node("SequenceConstruct", ["k", "k1"], ["sequence"]),
        node("Cast", ["c"], ["index"], to=onnx.TensorProto.INT64),
        node("SequenceAt", ["sequence", "index"], ["w"]),
    ]
    return nodes, [stored("k", 1, dtype), stored("k1", 2, dtype)]


def of_a_split(dtype: Any) -> Nodes:
    nodes = [
        node("SplitToSequence", ["k"], ["sequence"], axis=0, keepdims=0),
        node("Cast", ["c"], ["index"], to=onnx.TensorProto.INT64),
        node("SequenceAt", ["sequence", "index"], ["w"]),
    ]
    return nodes, [stored("k", 1, dtype, rows=2)]


def of_an_optional(dtype: Any) -> Nodes:
    return [node("Optional", ["k"], ["o"]), node("OptionalGetElement", ["o"], ["w"])], [stored("k", 1, dtype)]


def model(made: Nodes, dtype: Any, padding: int) -> bytes:
    """y = x * w + x; the name of the model moves all tensors by `padding` bytes."""
    nodes, initializers = made
    nodes = [*nodes, node("Mul", ["x", "w"], ["p"]), node("Add", ["p", "x"], ["y"])]
    inputs = [port("c", np.bool_, []), port("x", dtype, ["n", COUNT])]
    outputs = [port("y", dtype, ["n", COUNT]), port("w", dtype)]
    graph = helper.make_graph(nodes, "g" * (1 + padding), inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    serialized: bytes = proto.SerializeToString()
    return serialized


WAYS = [of_branches, of_a_loop, of_a_scan, of_a_sequence, of_a_split, of_an_optional]


@pytest.mark.parametrize("way", WAYS, ids=[each.__name__ for each in WAYS])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16])
def test_constants_at_any_offset(way: Any, dtype: Any) -> None:
    core = Core()
    x = (np.arange(2 * COUNT).reshape(2, COUNT) % 3).astype(dtype)
    expected: list[list[Array]] = []
    for padding in range(np.dtype(dtype).itemsize):
        data = model(way(dtype), dtype, padding)
        network = core.compile_model(data, "CPU")
        blob = io.BytesIO()
        network.export_model(blob)
        if not expected:
            judge = core.compile_model(data, "TEMPLATE")
            expected = [list(judge({"c": np.array(c), "x": x}).values()) for c in (True, False)]
        for each in (network, core.import_model(blob.getvalue(), "CPU")):
            for c, values in zip((True, False), expected, strict=True):
                for found, value in zip(each({"c": np.array(c), "x": x}).values(), values, strict=True):
                    np.testing.assert_array_equal(found, value)


def test_members_of_a_sequence_that_a_user_gives() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 16]>
    main (seq(float[n]) s, int64 i) => (float[n] y) {
        w = SequenceAt(s, i)
        y = Mul(w, w)
    }"""
    member = np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)
    network = Core().compile_model(onnx.parser.parse_model(text), "CPU")
    assert network({"s": [member, member], "i": np.array(1)})["y"].tolist() == [0] * 4
