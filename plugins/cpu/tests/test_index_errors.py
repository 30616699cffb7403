"""An index out of range: the error names the user's node, its operator, the input, the value, and what is allowed.

If this fails, a user is told of a node that no model has, such as a step of a decomposition.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engine import Core
from engine.errors import InputError

F = np.arange(12, dtype=np.float32).reshape(3, 4)
ONE = np.ones((1, 4), np.float32)
CACHE = np.ones((2, 3, 4), np.float32)
MAPS = np.ones((1, 1, 2, 2), np.float32)

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "Gather": ("Gather", {"x": F, "i": np.array([0, 9])}, {}, "`indices`: index 9 .* dimension of 3; expected -3..2"),
    "Gather, negative": ("Gather", {"x": F, "i": np.array([-4])}, {}, "`indices`: index -4 .* expected -3..2"),
    "GatherElements": ("GatherElements", {"x": F, "i": np.array([[7]])}, {}, "`indices`: index 7 .* expected -3..2"),
    "GatherND": ("GatherND", {"x": F, "i": np.array([[0, 9]])}, {}, "`indices`: index 9 .* expected -4..3"),
    "ScatterElements": (
        "ScatterElements", {"x": F, "i": np.array([[0, 1, 2, 9]]), "u": ONE}, {},
        "`indices`: index 9 .* expected -3..2",
    ),
    "ScatterND": (
        "ScatterND", {"x": F, "i": np.array([[0, 9]]), "u": ONE[0, :1]}, {}, "`indices`: index 9 .* expected -4..3",
    ),
    "ReverseSequence": (
        "ReverseSequence", {"x": F, "l": np.array([1, 2, 9, 1])}, {"batch_axis": 1, "time_axis": 0},
        "`sequence_lens`: a sequence length 9 is out of range for sequences of 3 steps; expected 0..3",
    ),
    "ReverseSequence, negative": (
        "ReverseSequence", {"x": F, "l": np.array([1, 2, -1, 1])}, {"batch_axis": 1, "time_axis": 0},
        "`sequence_lens`: a sequence length -1 is out of range for sequences of 3 steps; expected 0..3",
    ),
    "MaxUnpool": (
        "MaxUnpool", {"x": MAPS, "i": np.array([[[[0, 1], [2, 99]]]])}, {"kernel_shape": [2, 2], "strides": [2, 2]},
        "`I`: index 99 .* expected -16..15",
    ),
    "NegativeLogLikelihoodLoss": (
        "NegativeLogLikelihoodLoss", {"x": F, "t": np.array([0, 1, 9])}, {}, "`target`: index 9 .* expected -4..3",
    ),
    "SoftmaxCrossEntropyLoss": (
        "SoftmaxCrossEntropyLoss", {"x": F, "t": np.array([0, 1, 9])}, {}, "`labels`: index 9 .* expected -4..3",
    ),
    "Compress": (
        "Compress", {"x": F, "c": np.array([1, 0, 0, 1], bool)}, {"axis": 0}, "`condition`: index 3 .* expected 0..2",
    ),
    "TensorScatter": (
        "TensorScatter", {"x": CACHE, "u": CACHE[:, :1], "w": np.array([0, 9])}, {"axis": 1},
        "`write_indices`: index 9 .* expected 0..2",
    ),
    "RoiAlign": (
        "RoiAlign", {"x": MAPS, "r": np.array([[0, 0, 1, 1]], np.float32), "b": np.array([9])}, {},
        "`batch_indices`: index 9 .* expected 0..0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_index_out_of_range_names_what_the_user_knows(case: str) -> None:
    op_type, feeds, attributes, said = CASES[case]
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    node = helper.make_node(op_type, list(feeds), ["y"], "my/node", **attributes)
    graph = helper.make_graph([node], "g", ports, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    network, stream = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False}), io.BytesIO()
    network.export_model(stream)
    problem = f"^{op_type} `my/node`, input {said.replace('..', re.escape('..'))}$"
    for each in (network, Core().import_model(stream.getvalue())):
        with pytest.raises(InputError, match=problem):
            each(feeds)
