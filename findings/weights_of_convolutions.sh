#!/usr/bin/env bash
# nncf.compress_weights on an ONNX model with a convolution writes scales that onnxruntime does not take.
set -euo pipefail
nncf=3.4.0 onnxruntime=1.32.0 onnx=1.23.2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "nncf==$nncf" "onnxruntime==$onnxruntime" "onnx==$onnx"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys

import nncf
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

print("nncf", nncf.__version__, "onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
weights = np.random.default_rng(0).standard_normal((32, 3, 3, 3)).astype(np.float32)
node = helper.make_node("Conv", ["x", "k"], ["y"])
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 6, 6])
graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "k")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def refusal(proto):
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})
        return ""
    except Exception as error:
        return str(error)


compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
onnx.checker.check_model(compressed, full_check=True)
shapes = {tensor.name: list(tensor.dims) for tensor in compressed.graph.initializer}
print("initializers", shapes, "\nonnx.checker accepts it\nonnxruntime before:", refusal(model) or "runs")
after = refusal(compressed)
print("onnxruntime after:", after.rpartition("Status Message: ")[2][:300] or "runs")
sys.exit(not (shapes["k_scale"] == [32, 1, 1] and not refusal(model) and "DequantizeLinear" in after))
PYTHON
