#!/usr/bin/env bash
# What onnxruntime's Unique returns if one of the values is NaN.
# Expected: the other values as without it, and NaN as a value of its own, as numpy, torch and onnx's reference evaluator
# return it.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

node = helper.make_node("Unique", ["x"], ["y", "", "", "counts"], sorted=1)
outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None]),
           helper.make_tensor_value_info("counts", TensorProto.INT64, [None])]
graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])], outputs)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
reference = ReferenceEvaluator(model)

print("onnxruntime", onnxruntime.__version__)
losses = []
for values in ([3, 2, 1, 2], [np.nan, 1, np.nan, 1], [3, 2, np.nan, 1, 2], [1, np.nan, 2, 1, 0]):
    x = np.array(values, np.float32)
    expected, counts = reference.run(None, {"x": x})
    found, found_counts = session.run(None, {"x": x})
    losses.append(len(expected) - len(found))
    print(f"{values}: expected {expected.tolist()} {counts.tolist()} times, got {found.tolist()} {found_counts.tolist()}")
sys.exit(losses != [0, 1, 1, 1])
PYTHON
