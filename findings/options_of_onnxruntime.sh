#!/usr/bin/env bash
# What onnxruntime does with options that do not exist, such as misspelt ones.
# Expected: an error that names the option.
set -euo pipefail
onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def ran(session_entries, provider_options, run_entries):
    """Whether an inference with these options gives a result."""
    options, run = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    try:
        for key, value in session_entries.items():
            options.add_session_config_entry(key, value)
        for key, value in run_entries.items():
            run.add_run_config_entry(key, value)
        session = onnxruntime.InferenceSession(model, options, providers=[("CPUExecutionProvider", provider_options)])
        return session.run(None, {"x": np.ones(2, np.float32)}, run)[0].tolist() == [-1.0, -1.0]
    except Exception as error:
        print(error)
        return False


print(f"onnxruntime {onnxruntime.__version__}")
found = {
    "an entry of the session": ran({"session.intra_op.alow_spinning": "0"}, {}, {}),
    "an option of the CPU provider": ran({}, {"use_arenna": "0"}, {}),
    "an entry of the run": ran({}, {}, {"memory.enable_memory_arena_shrinkages": "cpu:0"}),
}
for what, is_taken in found.items():
    print(f"{what} that is misspelt: {'taken without a word' if is_taken else 'refused'}; expected an error")
sys.exit(not all(found.values()))
PYTHON
