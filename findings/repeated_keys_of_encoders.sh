#!/usr/bin/env bash
# onnxruntime 1.32.0: LabelEncoder of ai.onnx.ml 4 takes the first of two equal keys.
#
# The guess before: "If a key is repeated, the last key takes precedence", as the operator's documentation says.
# What happens: keys [1, 1] with values [7, 8] map 1 to 7 in onnxruntime, and to 8 in onnx.reference 1.23.2.
# Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
encoder = helper.make_node(
    "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_floats=[1.0, 1.0], values_floats=[7.0, 8.0], default_float=-1.0
)
x, y = (helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy")
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
model = helper.make_model(helper.make_graph([encoder], "g", [x], [y]), opset_imports=opsets, ir_version=10)
inputs = {"x": np.array([1, 2], np.float32)}
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
runtime, reference = session.run(None, inputs)[0].tolist(), ReferenceEvaluator(model).run(None, inputs)[0].tolist()
print("1 and 2 encoded: onnxruntime", runtime, "reference", reference)
assert runtime == [7, -1], "the behaviour has changed"
assert reference == [8, -1], "the behaviour has changed"
PY
