#!/usr/bin/env bash
# onnxruntime 1.32.0: ScatterND with reduction="add" and indices that repeat, with one thread and with more.
#
# The guess before: ONNX defines the sum for repeated indices, so onnxruntime computes it, and threads only change the
# order in which it adds, which is a difference of rounding.
# What happens: with one thread, the sums are right; with two or more, updates of the same row are lost, other ones in
# each run, without an error. Sums of poolings over graphs are wrong by a tenth of their scale.
# Exits with 1 if the behaviour is another one. Needs two cores.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnx==1.22.0 onnxruntime==1.32.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from onnx import helper

print("onnxruntime", onnxruntime.__version__)
random = np.random.default_rng(0)
nodes, edges, width = 1024, 8192, 32
updates = random.standard_normal((edges, width)).astype(np.float32)
indices = random.integers(0, nodes, (edges, 1))
data = np.zeros((nodes, width), np.float32)
expected = data.astype(np.float64)
np.add.at(expected, indices[:, 0], updates)
node = helper.make_node("ScatterND", ["data", "indices", "updates"], ["sums"], reduction="add")
ends = [("data", 1, data.shape), ("indices", 7, indices.shape), ("updates", 1, updates.shape), ("sums", 1, data.shape)]
infos = [helper.make_tensor_value_info(*end) for end in ends]
graph = helper.make_graph([node], "graph", infos[:3], infos[3:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
largest = {}
for threads in (1, 2):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {"data": data, "indices": indices, "updates": updates}
    errors = [np.abs(session.run(None, feed)[0] - expected).max() / np.abs(expected).max() for _ in range(200)]
    largest[threads] = float(max(errors))
    print(threads, "threads: largest error of 200 runs", f"{largest[threads]:.2g}", "of the scale")
assert largest[1] < 1e-6, "the result with one thread has changed"
assert largest[2] > 1e-3, "the result with two threads has changed"
PY
