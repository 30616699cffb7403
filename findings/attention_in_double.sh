#!/usr/bin/env bash
# How accurate ONNX's Attention of doubles is in onnxruntime.
# Expected: as accurate as doubles are (errors of about 1e-15), like MatMul and Softmax of doubles there.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" - <<'PYTHON'
import math
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

print("onnxruntime", onnxruntime.__version__)
random = np.random.default_rng(0)
errors = {}
for size, scale in ((4, None), (64, None), (80, None), (64, 1.0)):
    q, k, v = (random.normal(size=(1, 2, 6, size)) for _ in range(3))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=scale)
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, q.shape) for name in "qkv"]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    scores = q @ k.swapaxes(2, 3) * (1 / math.sqrt(size) if scale is None else scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    given = {"q": q, "k": k, "v": v}
    errors[size, scale] = [float(np.abs(found - expected).max())
                    for found in (session.run(None, given)[0], ReferenceEvaluator(model).run(None, given)[0])]
    print(f"head size {size}, scale {scale}: largest error {errors[size, scale][0]:.1e}, of onnx's reference evaluator "
          f"{errors[size, scale][1]:.1e}")
exact = errors.pop((64, 1.0))[0] < 1e-12
sys.exit(not (exact and all(1e-9 < found < 1e-6 and right < 1e-12 for found, right in errors.values())))
PYTHON
