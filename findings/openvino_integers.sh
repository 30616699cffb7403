#!/usr/bin/env bash
# openvino 2026.4.1: 32-bit integers go through f32 in some operators, 64-bit integers are clipped to 32 bits, and sums of
# 8-bit integers saturate.
#
# The guess before: integer operators of ONNX compute integers, and wrap around if a result does not fit.
# What happens: ReduceMax, Relu and Div give numbers of f32 for integers above 2^24, although Max, Add and Mul are exact;
# 2^40 becomes 0, and 2^31 - 1 + 1 as int64 is -2^31; 200 + 100 as uint8 is 255.
# Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnx==1.23.2 openvino==2026.4.1 numpy==2.4.6
"$work/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import openvino
from onnx import helper

print("onnx", onnx.__version__, "openvino", openvino.__version__)


def run(operator, *inputs, **attributes):
    names = [f"input_{index}" for index in range(len(inputs))]
    types = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    node = helper.make_node(operator, names, ["output"], **attributes)
    infos = [helper.make_tensor_value_info("input_0", types[0], inputs[0].shape)]
    others = [onnx.numpy_helper.from_array(value, name) for name, value in zip(names[1:], inputs[1:])]
    graph = helper.make_graph([node], "graph", infos, [helper.make_tensor_value_info("output", types[0], None)], others)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
    result = next(iter(compiled(inputs[0]).values()))
    print(operator, *(value.dtype for value in inputs), *(value.tolist() for value in inputs), "->", result.tolist())
    return result.tolist()


large, axes = np.array([123456789, 5], np.int32), np.array([0], np.int64)
assert run("Max", large, large) == [123456789, 5], "the behaviour has changed"
assert run("Mul", large, np.array([3, 3], np.int32)) == [370370367, 15], "the behaviour has changed"
assert run("ReduceMax", large, axes, keepdims=0) == 123456792, "the behaviour has changed"
assert run("Relu", large) == [123456792, 5], "the behaviour has changed"
assert run("Div", large, np.array([5, 5], np.int32)) == [24691358, 1], "the behaviour has changed"

wide = np.array([2**40, 2**31 - 1], np.int64)
assert run("Add", wide, np.array([0, 1], np.int64)) == [0, -(2**31)], "the behaviour has changed"
assert run("Add", np.array([200], np.uint8), np.array([100], np.uint8)) == [255], "the behaviour has changed"
PY
