#!/usr/bin/env bash
# Texts in a numpy array of bytes (dtype "S2"), of which some fill the whole width, as input of onnxruntime.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime

print("onnxruntime", onnxruntime.__version__, "numpy", np.__version__)
value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["N"])
graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value("x")], [value("y")])
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
texts = np.array([b"ab", b"cd", b""])  # the last one ends the reading here
found = session.run(None, {"x": texts})[0].tolist()
as_text = session.run(None, {"x": texts.astype(str)})[0].tolist()
print("given", texts.tolist(), "\nexpected", as_text, "\nfound", found)
sys.exit(found != ["abcd", "cd", ""] or as_text != ["ab", "cd", ""])
PYTHON
