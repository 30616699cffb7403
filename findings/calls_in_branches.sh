#!/usr/bin/env bash
# A function of onnxscript that calls another function only within an If: its imports lack the other's domain.
set -euo pipefail
onnxscript=0.7.2 onnxruntime=1.32.0 onnx=1.23.2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxscript==$onnxscript" "onnxruntime==$onnxruntime" "onnx==$onnx"
cat >"$folder/model.py" <<'PYTHON'
import sys

import onnx
import onnxruntime
import onnxscript
from onnxscript import FLOAT, script
from onnxscript import opset21 as op
from onnxscript.values import Opset

local = Opset("local", 1)


@script(local, default_opset=op)
def act(x: FLOAT) -> FLOAT:
    return op.LeakyRelu(x, alpha=0.5)


@script(local, default_opset=op)
def chosen(x: FLOAT) -> FLOAT:
    if op.ReduceSum(x, keepdims=0) > op.Constant(value_float=0.0):
        y = act(x)
    else:
        y = op.Neg(x)
    return y


@script(local, default_opset=op)
def always(x: FLOAT) -> FLOAT:
    return act(x)


@script(default_opset=op)
def in_branch(x: FLOAT[2, 3]) -> FLOAT[2, 3]:
    return chosen(x)


@script(default_opset=op)
def outside(x: FLOAT[2, 3]) -> FLOAT[2, 3]:
    return always(x)


def refusal(function):
    proto = function.to_model_proto()
    imports = {each.name: [entry.domain for entry in each.opset_import] for each in proto.functions}
    try:
        onnx.checker.check_model(proto)
        checked = "accepts it"
    except onnx.checker.ValidationError as error:
        checked = str(error).splitlines()[0]
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        found = ""
    except Exception as error:
        found = str(error)
    print(function.name, "imports", imports, "\n    onnx.checker:", checked, "\n    onnxruntime:", found or "loads it")
    return found


print("onnxscript", onnxscript.__version__, "onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
sys.exit(not (refusal(outside) == "" and "No opset registered for domain local" in refusal(in_branch)))
PYTHON
"$folder/venv/bin/python" "$folder/model.py"
