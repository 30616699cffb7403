#!/usr/bin/env bash
# openvino 2026.4.1: some attributes and inputs of ONNX operators are ignored, without an error or a warning.
#
# The guess before: what the frontend for ONNX does not implement, it refuses, as it refuses many other forms.
# What happens: LRN drops the fraction of `bias`; DFT transforms axis 1, whatever its input `axis` says; LSTM ignores
# `input_forget` and peepholes, and causal Attention with a past masks as if there were none.
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
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "openvino", openvino.__version__)


def run(operator, *inputs, opset=18, **attributes):
    """OpenVINO's first output, and onnx.reference's."""
    names = ["" if value is None else f"input_{index}" for index, value in enumerate(inputs)]
    given = {name: value for name, value in zip(names, inputs) if name}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    node = helper.make_node(operator, names, ["output"], **attributes)
    out = helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "graph", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    kept = {port.get_any_name() for port in compiled.inputs}  # the axis of DFT is dropped
    got = next(iter(compiled({name: value for name, value in given.items() if name in kept}).values()))
    return got, ReferenceEvaluator(model).run(None, given)[0]


def difference(operator, *inputs, **attributes):
    """The largest difference between the two."""
    got, expected = run(operator, *inputs, **attributes)
    largest = float(np.abs(got - expected).max())
    print(operator, attributes, f"{len(inputs)} inputs: differs by {largest:.3g}")
    return largest


random = np.random.default_rng(0)


def numbers(*shape):
    return random.standard_normal(shape).astype(np.float32)


changed = "the behaviour has changed"
# For a single channel, LRN is x / (bias + alpha / size * x * x) ** beta; onnx.reference sums other channels.
x = numbers(1, 1, 4, 4)
for bias, is_right in ((2.0, True), (1.5, False)):
    got, _ = run("LRN", x, size=1, alpha=0.3, beta=0.6, bias=bias)
    largest = float(np.abs(got - x / (bias + 0.3 * x * x) ** 0.6).max())
    print("LRN with bias", bias, f"differs by {largest:.3g}")
    assert (largest < 1e-5) == is_right, changed

signal = numbers(1, 4, 6, 2)
assert difference("DFT", signal, None, np.array(1), opset=20) < 1e-4, changed
assert difference("DFT", signal, None, np.array(2), opset=20) > 1e-1, changed

weights = numbers(5, 3, 4), numbers(1, 24, 4), numbers(1, 24, 6)
assert difference("LSTM", *weights, hidden_size=6) < 1e-4, changed
plain, coupled = (run("LSTM", *weights, hidden_size=6, input_forget=value)[0] for value in (0, 1))
print("LSTM is the same with input_forget:", np.array_equal(plain, coupled))  # which onnx.reference ignores, too
assert np.array_equal(plain, coupled), changed
assert difference("LSTM", *weights, None, None, None, None, numbers(1, 18), hidden_size=6) > 1e-2, changed

heads = numbers(1, 2, 3, 4), numbers(1, 2, 5, 4), numbers(1, 2, 5, 4)
past = numbers(1, 2, 2, 4), numbers(1, 2, 2, 4)
assert difference("Attention", *heads, opset=23, is_causal=1) < 1e-4, changed
assert difference("Attention", *heads, None, *past, opset=23, is_causal=1) > 1e-2, changed
PY
