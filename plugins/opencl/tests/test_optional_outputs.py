"""Outputs that a model leaves out before others that it names.

If this fails, a recurrent layer whose last state alone is read, for example, does not run on this device.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core

# Operator, shapes of its inputs, names of its outputs, attributes.
CASES: dict[str, tuple[str, list[tuple[int, ...]], list[str], dict[str, Any]]] = {
    "cell of an LSTM": ("LSTM", [(3, 2, 5), (1, 16, 5), (1, 16, 4)], ["y", "", "c"], {"hidden_size": 4}),
    "states of an LSTM": ("LSTM", [(3, 2, 5), (1, 16, 5), (1, 16, 4)], ["", "h", "c"], {"hidden_size": 4}),
    "state of a GRU": ("GRU", [(3, 2, 5), (2, 12, 5), (2, 12, 4)], ["", "h"],
                       {"hidden_size": 4, "direction": "bidirectional"}),
    "deviation of a norm": ("LayerNormalization", [(3, 40), (40,)], ["y", "", "inverse_deviation"], {}),
    "values of an attention": ("Attention", [(1, 2, 3, 4)] * 3, ["y", "", "present_value"], {}),
    "scores of an attention": ("Attention", [(1, 2, 3, 4)] * 3, ["y", "", "", "scores"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_others_are_computed(name: str) -> None:
    op_type, shapes, outputs, attributes = CASES[name]
    draw = np.random.default_rng(0)
    values = [draw.standard_normal(shape, np.float32) for shape in shapes]
    node = helper.make_node(op_type, [f"x{i}" for i in range(len(shapes))], outputs, **attributes)
    graph = helper.make_graph(
        [node], "case", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shapes[0])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in outputs if output],
        [numpy_helper.from_array(value, f"x{i}") for i, value in enumerate(values) if i],
    )  # fmt: skip
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString()
    core = Core()
    network, stream = core.compile_model(onnx.ModelProto.FromString(data), "OPENCL"), BytesIO()
    network.export_model(stream)
    expected = core.compile_model(onnx.ModelProto.FromString(data), "TEMPLATE")(values[:1])
    half = core.compile_model(onnx.ModelProto.FromString(data), "OPENCL", {"INFERENCE_PRECISION_HINT": "f16"})
    # Some eight roundings of f32; of f16, whose values pass through up to five operators, ten units of 2**-10.
    for made, tolerance in ((network, 1e-6), (core.import_model(stream.getvalue()), 1e-6), (half, 0.01)):
        found = made(values[:1])
        for value, right in zip(found.values(), expected.values(), strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=tolerance * np.abs(right).max())
