#!/usr/bin/env bash
# What onnxruntime's CPU kernels of mixtures of experts compute, where the documentation says little.
# Expected: gelu by the error function, as ONNX's Gelu; of equal routing logits, the expert with the lower index, as TopK;
# `normalize_routing_weights` with the same effect in QMoE as in MoE.
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

EXPERTS, HIDDEN, INNER, ROWS = 4, 32, 32, 3
random = np.random.default_rng(0)
x = random.normal(size=(ROWS, HIDDEN)).astype(np.float32)


def run(op_type: str, inputs: dict[str, np.ndarray], **attributes: object) -> np.ndarray:
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
             for name, value in inputs.items() if name]
    node = helper.make_node(op_type, list(inputs), ["y"], domain="com.microsoft", **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, HIDDEN])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, [result]), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: value for name, value in inputs.items() if name})[0]


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-4))


print("onnxruntime", onnxruntime.__version__)
weights = {"w1": random.normal(size=(EXPERTS, INNER, HIDDEN)).astype(np.float32) / 4, "": np.zeros(0),
           "w2": random.normal(size=(EXPERTS, HIDDEN, INNER)).astype(np.float32) / 4}
w1, w2 = weights["w1"], weights["w2"]
equal = {"x": x, "p": np.zeros((ROWS, EXPERTS), np.float32), **weights}

# One of equal experts, without activation: which one is it?
chosen = run("MoE", equal, k=1, activation_type="identity", normalize_routing_weights=1)
of_each = [close(chosen, x @ w1[e].T @ w2[e].T) for e in range(EXPERTS)]
print("of equal logits, the chosen expert is", of_each.index(True), "of", EXPERTS)

# Gelu: two formulas.
routed = np.full((ROWS, EXPERTS), -50, np.float32)
routed[:, 1] = 0
gelu = run("MoE", equal | {"p": routed}, k=1, activation_type="gelu", normalize_routing_weights=1)
h = (x @ w1[1].T).astype(np.float64)
erf = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2 @ w2[1].T
tanh = h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2 @ w2[1].T
errors = [float(np.abs(gelu - each).max()) for each in (erf, tanh)]
print(f"gelu: it differs from the error function's form by {errors[0]:.1e}, from the tanh form by {errors[1]:.1e}")

# The flag: does it change the result?
logits = random.normal(size=(ROWS, EXPERTS)).astype(np.float32)
codes = {name: random.integers(0, 256, value.shape, dtype=np.uint8) for name, value in (("w1", w1), ("w2", w2))}
scales = {name: np.full(value.shape[:2], 0.001, np.float32) for name, value in (("s1", w1), ("s2", w2))}
quantized = {"x": x, "p": logits, "w1": codes["w1"], "s1": scales["s1"], "": np.zeros(0), "w2": codes["w2"],
             "s2": scales["s2"]}
changed = {}
for op_type, inputs, options in (("MoE", equal | {"p": logits}, {}), ("QMoE", quantized, {"expert_weight_bits": 8})):
    results = [run(op_type, inputs, k=2, activation_type="identity", normalize_routing_weights=flag, **options)
               for flag in (0, 1)]
    changed[op_type] = not np.array_equal(*results)
    print(f"{op_type}: normalize_routing_weights changes the result: {changed[op_type]}")
as_written = of_each.index(True) == EXPERTS - 1 and errors[1] < 1e-4 < errors[0]
sys.exit(not (as_written and changed["MoE"] and not changed["QMoE"]))
PYTHON
