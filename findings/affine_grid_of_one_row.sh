#!/usr/bin/env bash
# What AffineGrid gives for the middle of an axis of length 1, with aligned corners.
# Expected: torch, onnx's reference evaluator and onnxruntime agree on the grid of the identity for an image of one row:
# torch writes this operator for its own affine_grid.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 torch=2.13.0 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "torch==$torch" "numpy==$numpy"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

theta, size = np.eye(2, 3, dtype=np.float32)[None], np.array([1, 1, 1, 3], np.int64)
node = helper.make_node("AffineGrid", ["theta", "size"], ["grid"], align_corners=1)
inputs = [helper.make_tensor_value_info("theta", TensorProto.FLOAT, [1, 2, 3]),
          helper.make_tensor_value_info("size", TensorProto.INT64, [4])]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("grid", TensorProto.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

given = {"theta": theta, "size": size}
grids = {
    f"torch {torch.__version__}": torch.nn.functional.affine_grid(
        torch.from_numpy(theta), size.tolist(), align_corners=True
    ).numpy(),
    "onnx's reference evaluator": ReferenceEvaluator(model).run(None, given)[0],
    f"onnxruntime {onnxruntime.__version__}": session.run(None, given)[0],
}
for name, grid in grids.items():
    print(f"{name}: x of the row's pixels {grid[0, 0, :, 0].tolist()}, y {grid[0, 0, :, 1].tolist()}")
sys.exit([grid[0, 0, :, 1].tolist() for grid in grids.values()] != [[0.0] * 3, [-1.0] * 3, [1.0] * 3])
PYTHON
