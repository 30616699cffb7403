"""Types of 4 and 8 bits as onnxruntime has them. If a test fails, a model quantized to such a type gives other numbers.

The operator suite compares every type, bit for bit, with the reference evaluator.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine import Core

FLOATS = [
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
]
NUMBERS = np.concatenate([
    np.linspace(-20, 20, 201), np.geomspace(1e-7, 1e6, 501), -np.geomspace(1e-7, 1e6, 300), [0.0, -0.0, 464, 61440],
]).astype(np.float32)  # fmt: skip
STRANGE = np.append(NUMBERS, np.float32([np.nan, np.inf, -np.inf]))


def check(
    nodes: list[onnx.NodeProto], constants: list[TensorProto], x: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": x}).values()
    np.testing.assert_array_equal(got, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("to", FLOATS, ids=TensorProto.DataType.Name)
def test_casts(to: int) -> None:
    cast, back = helper.make_node("Cast", ["x"], ["c"], to=to), helper.make_node("Cast", ["c"], ["y"], to=1)
    check([cast, back], [], STRANGE)


@pytest.mark.parametrize("to", [*FLOATS, TensorProto.INT4, TensorProto.UINT4], ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("zero_point", [0, 1])
def test_quantization(to: int, zero_point: int) -> None:
    is_float = to in FLOATS
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.25]),
        helper.make_tensor("zero", to, [], [0 if is_float else zero_point]),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"]),
        helper.make_node("Identity", ["codes"], ["same"]),
        helper.make_node("DequantizeLinear", ["same", "scale", "zero"], ["y"]),
    ]
    check(nodes, constants, STRANGE if is_float else NUMBERS)  # the code of NaN is open, and differs
