"""An invalid node is refused when it is read, with its name: not later, as a fault of a pass or of a device."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from engine.errors import EngineError
from engine.onnx import read_model

MAP, LABELS = (TensorProto.FLOAT, [1, 4, 5, 5]), (TensorProto.INT64, [1, 5, 5])
INVALID = [
    ("Conv", [MAP, (TensorProto.FLOAT, [4, 4, 3, 3])], {"group": 0}),
    ("Conv", [MAP, (TensorProto.FLOAT, [4, 4, 3, 3])], {"strides": [0, 1]}),
    ("Transpose", [MAP], {"perm": [0, 1, 2, 4]}),
    ("LpNormalization", [(TensorProto.FLOAT, [])], {}),
    ("ArgMax", [MAP], {"keepdims": 7}),
    ("ReduceSum", [MAP], {"keepdims": -1}),
    ("TopK", [MAP, (TensorProto.INT64, [1])], {"largest": 2}),
    ("MaxPool", [MAP], {"kernel_shape": [2, 2], "ceil_mode": 3}),
    ("NegativeLogLikelihoodLoss", [MAP, LABELS], {"reduction": "average"}),
    ("SoftmaxCrossEntropyLoss", [MAP, LABELS], {"reduction": ""}),
    ("StringNormalizer", [(TensorProto.STRING, [3])], {"case_change_action": "TITLE"}),
]


def model_of(op_type: str, inputs: list[tuple[int, list[int]]], attributes: dict[str, Any], declared: int) -> bytes:
    names = [f"input_{index}" for index in range(len(inputs))]
    outputs = ["y", "places"][: 2 if op_type == "TopK" else 1]
    node = helper.make_node(op_type, names, outputs, name="culprit", **attributes)
    given = [helper.make_tensor_value_info(name, *each) for name, each in zip(names, inputs, strict=True)]
    graph = helper.make_graph([node], "blame", given, [helper.make_tensor_value_info("y", declared, None)])
    written: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()
    return written


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), INVALID, ids=lambda each: str(each)[:40])
def test_it_is_refused_when_it_is_read(
    op_type: str, inputs: list[tuple[int, list[int]]], attributes: dict[str, Any]
) -> None:
    declared = {"ArgMax": TensorProto.INT64, "StringNormalizer": TensorProto.STRING}.get(op_type, TensorProto.FLOAT)
    with pytest.raises(EngineError, match="culprit"):
        read_model(model_of(op_type, inputs, attributes, declared))


def test_a_wrong_declaration_names_the_node() -> None:
    with pytest.raises(EngineError, match=r"output `y` is declared as f64.*Relu `culprit` gives f32"):
        read_model(model_of("Relu", [MAP], {}, TensorProto.DOUBLE))
