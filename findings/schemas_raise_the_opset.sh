#!/usr/bin/env bash
# onnx 1.23.2: registering a schema of a later version makes it the newest opset of onnx's own domain.
#
# The guess before: onnx.defs.register_schema adds to domains of one's own; for the domain of ONNX, a version that the
# release does not know is refused, as a model of that version is refused by the checker.
# What happens: the domain's newest version becomes that of the schema, for the whole process. onnx.helper.make_model
# then writes models of an opset that no release of onnx has, and the checker accepts them.
# Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnx==1.23.2 numpy==2.4.6
"$work/venv/bin/python" - <<'PY'
import onnx
from onnx import helper

Schema = onnx.defs.OpSchema
before = onnx.defs.onnx_opset_version()
parameter = Schema.FormalParameter
onnx.defs.register_schema(
    Schema("Relu", "", before + 3, inputs=[parameter("X", "T")], outputs=[parameter("Y", "T")],
           type_constraints=[("T", ["tensor(float)"], "")])
)
after = onnx.defs.onnx_opset_version()
x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y]))
written = model.opset_import[0].version
print("onnx", onnx.__version__, "newest opset before and after:", before, after, "opset of a new model:", written)
onnx.checker.check_model(model)
assert (after, written) == (before + 3, before + 3), "the behaviour has changed"
PY
