#!/usr/bin/env bash
# What RNN, GRU and LSTM return as the last state of a sequence of length 0.
# Expected: the initial state, which no step has changed: Y_h is "the last output value of the hidden", and a sequence
# that ends early keeps the state of its last step.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

print(f"onnxruntime {onnxruntime.__version__}")
found = {}
for op_type, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    node = helper.make_node(op_type, ["x", "w", "r", "", "lengths", "initial"], ["", "last"], hidden_size=2)
    values = {"x": np.ones((3, 2, 1), np.float32), "w": np.zeros((1, gates * 2, 1), np.float32),
              "r": np.zeros((1, gates * 2, 2), np.float32), "lengths": np.array([3, 0], np.int32),
              "initial": np.full((1, 2, 2), 7, np.float32)}
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
              for k, v in values.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("last", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found[op_type] = session.run(None, values)[0][0, 1].tolist()
    print(f"{op_type}: the sequence of length 0 has the last state {found[op_type]}, expected its initial one, [7.0, 7.0]")
sys.exit(any(last != [0.0, 0.0] for last in found.values()))
PYTHON
