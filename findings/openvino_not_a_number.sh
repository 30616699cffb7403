#!/usr/bin/env bash
# openvino 2026.4.1: NaN becomes a number in Exp, Relu, Clip and Max, is greater than a number, and infinities are clipped.
#
# The guess before: functions of NaN are NaN, at least with EXECUTION_MODE_HINT=ACCURACY; comparisons with NaN are false.
# What happens: Exp of NaN is infinity, Relu of it 0; `NaN > 1` is true, and `NaN < 1` false; the ReduceMax of minus
# infinities is the least finite number, and so is a Clip of minus infinity without bounds.
# Exits with 1 if the behaviour is another one; it was seen on a CPU with AVX-512.
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


def run(operator, *inputs, result=onnx.TensorProto.FLOAT, **attributes):
    names = [f"input_{index}" for index in range(len(inputs))]
    types = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    node = helper.make_node(operator, names, ["output"], **attributes)
    infos = [helper.make_tensor_value_info(name, type_, value.shape) for name, type_, value in zip(names, types, inputs)]
    graph = helper.make_graph([node], "graph", infos, [helper.make_tensor_value_info("output", result, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
    got = next(iter(compiled(list(inputs)).values()))
    print(operator, *(value.tolist() for value in inputs), "->", got.tolist())
    return got.reshape(-1)[0]


nan, one = np.array([np.nan], np.float32), np.ones(1, np.float32)
low, least = np.array([-np.inf], np.float32), np.finfo(np.float32).min
boolean = onnx.TensorProto.BOOL
assert run("Exp", nan) == np.inf, "the behaviour has changed"
assert run("Relu", nan) == 0, "the behaviour has changed"
assert run("Greater", nan, one, result=boolean), "the behaviour has changed"
assert not run("Less", nan, one, result=boolean), "the behaviour has changed"
assert run("ReduceMax", low, np.array([0], np.int64)) == least, "the behaviour has changed"
assert run("Clip", low) == least, "the behaviour has changed"
PY
