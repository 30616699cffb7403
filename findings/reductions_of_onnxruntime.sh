#!/usr/bin/env bash
# onnxruntime 1.32.0: integer reductions saturate where its other sums wrap, and ReduceMax keeps a NaN only if it is first.
#
# The guess before: integer sums of one runtime overflow alike, and the largest of numbers with a NaN is NaN (numpy's
# answer, and the one of onnx.reference 1.23.2) or the largest number (fmax), wherever the NaN stands.
# What happens: 2147483647 + 1 is -2147483648 by Add, CumSum and MatMul, and 2147483647 by ReduceSum and ReduceL1; of
# [NaN, 1, 2], ReduceMax gives NaN, of [1, NaN, 2] it gives 2.
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

print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)


def run(operator, *inputs, **attributes):
    names = [f"input_{index}" for index in range(len(inputs))]
    types = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    node = helper.make_node(operator, names, ["output"], **attributes)
    infos = [helper.make_tensor_value_info(name, type_, value.shape) for name, type_, value in zip(names, types, inputs)]
    graph = helper.make_graph([node], "graph", infos, [helper.make_tensor_value_info("output", types[0], None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result = session.run(None, dict(zip(names, inputs)))[0]
    print(operator, *(value.tolist() for value in inputs), "->", result.tolist())
    return result


most, least, axes = 2**31 - 1, -(2**31), np.array([0], np.int64)
pair = np.array([most, 1], np.int32)
wrapped = [
    run("Add", pair[:1], pair[1:])[0],
    run("CumSum", pair, np.array(0, np.int64))[1],
    run("MatMul", pair[None], np.ones((2, 1), np.int32))[0, 0],
]
saturated = [run("ReduceSum", pair, axes, keepdims=0), run("ReduceL1", pair, axes, keepdims=0)]
assert all(value == least for value in wrapped), "the behaviour has changed"
assert all(value == most for value in saturated), "the behaviour has changed"

first = run("ReduceMax", np.array([np.nan, 1, 2], np.float32), axes, keepdims=0)
second = run("ReduceMax", np.array([1, np.nan, 2], np.float32), axes, keepdims=0)
assert np.isnan(first) and second == 2, "the behaviour has changed"
PY
