#!/usr/bin/env bash
# onnxruntime's CPU kernel of MatMulBnb4 computes the same for transB = 0 and 1, for a square matrix.
# Expected, from the attribute's documentation ("Whether B should be transposed on the last two dimensions before doing
# multiplication. Default to be 1."): with transB = 0, the product with the matrix as it is stored.
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

SIZE, BLOCK = 16, 16
TABLE = np.array([0.0, 0.00520833, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25], np.float32)  # FP4, without the sign
random = np.random.default_rng(0)
codes = random.integers(0, 16, SIZE * SIZE, dtype=np.uint8)
packed = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)
scales = random.uniform(0.5, 2, SIZE * SIZE // BLOCK).astype(np.float32)
values = np.where(codes & 8, -TABLE[codes & 7], TABLE[codes & 7]) * np.repeat(scales, BLOCK)
stored = values.reshape(SIZE, SIZE).astype(np.float32)


def run(transposed: int) -> np.ndarray:
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in (
        ("A", TensorProto.FLOAT, [SIZE, SIZE]), ("B", TensorProto.UINT8, [packed.size]),
        ("absmax", TensorProto.FLOAT, [scales.size]))]
    node = helper.make_node("MatMulBnb4", ["A", "B", "absmax"], ["Y"], domain="com.microsoft", K=SIZE, N=SIZE,
                            block_size=BLOCK, quant_type=0, transB=transposed)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [SIZE, SIZE])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"A": np.eye(SIZE, dtype=np.float32), "B": packed, "absmax": scales})[0]


print("onnxruntime", onnxruntime.__version__)
found = {transposed: run(transposed) for transposed in (0, 1)}
for transposed, y in found.items():
    print(f"transB={transposed}: the identity times the matrix is the stored matrix: "
          f"{np.allclose(y, stored, atol=1e-5)}, its transposed: {np.allclose(y, stored.T, atol=1e-5)}")
same = all(np.allclose(y, stored.T, atol=1e-5) and not np.allclose(y, stored, atol=1e-5) for y in found.values())
sys.exit(not same)
PYTHON
