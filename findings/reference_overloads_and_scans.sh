#!/usr/bin/env bash
# onnx.reference (onnx 1.23.2) calls the wrong overload of a function, and joins what a Loop should stack.
#
# The guess before: the reference evaluator is the judge of both, and agrees with onnxruntime.
# What happens:
# - Two functions `f` of one domain, one with the overload "second": both calls run that one. onnxruntime runs each.
# - A Loop whose scan output has shape [1, 2] in each of three iterations gives shape [3, 2]; the specification adds an
#   axis, and onnxruntime gives [3, 1, 2].
# Both models pass onnx's checker with full_check=True. Exits with 1 if the behaviour is another one.
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
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
value, node, opset = helper.make_tensor_value_info, helper.make_node, helper.make_opsetid


def both(graph, inputs, functions=(), domains=()):
    opsets = [opset("", 21), *(opset(name, 1) for name in domains)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return ReferenceEvaluator(model).run(None, inputs), session.run(None, inputs)


def function(op_type, overload):
    made = helper.make_function("local", "f", ["x"], ["y"], [node(op_type, ["x"], ["y"])], [opset("", 21)])
    made.overload = overload
    return made


calls = [node("f", ["x"], ["a"], domain="local"), node("f", ["x"], ["b"], domain="local")]
calls[1].overload = "second"
graph = helper.make_graph(calls, "g", [value("x", 1, [2])], [value("a", 1, [2]), value("b", 1, [2])])
functions = [function("Neg", ""), function("Abs", "second")]
reference, runtime = both(graph, {"x": np.array([1, -2], np.float32)}, functions, ["local"])
print("Neg and Abs of [1, -2] by overloads: reference", *reference, "onnxruntime", *runtime)
assert reference[0].tolist() == [1, 2], "the behaviour has changed"
assert runtime[0].tolist() == [-1, 2], "the behaviour has changed"

nodes = [node("Identity", ["c"], ["c2"]), node("Identity", ["x"], ["s"])]
body = helper.make_graph(nodes, "b", [value("i", 7, []), value("c", 9, [])], [value("c2", 9, []), value("s", 1, [1, 2])])
inputs = [value("n", 7, []), value("t", 9, []), value("x", 1, [1, 2])]
graph = helper.make_graph([node("Loop", ["n", "t"], ["y"], body=body)], "g", inputs, [value("y", 1, [None, 1, 2])])
reference, runtime = both(graph, {"n": np.array(3), "t": np.array(True), "x": np.ones((1, 2), np.float32)})
print("scan output of [1, 2] in 3 iterations: reference", reference[0].shape, "onnxruntime", runtime[0].shape)
assert reference[0].shape == (3, 2), "the behaviour has changed"
assert runtime[0].shape == (3, 1, 2), "the behaviour has changed"
PY
