#!/usr/bin/env bash
# A Slice along one axis to an end that is computed: onnx's shape inference then knows no length of any axis.
set -euo pipefail
onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnx==$onnx" "numpy==$numpy"
cat >"$folder/infer.py" <<'PYTHON'
import sys

import onnx
from onnx import parser
from onnx.shape_inference import infer_shapes

model = parser.parse_model("""
<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 16, N] x, int64[1] end) => (float[A, B, C] y, float[D, E, F] z) {
  start = Constant<value = int64[1] {0}>()
  axis = Constant<value = int64[1] {1}>()
  four = Constant<value = int64[1] {4}>()
  constant_end = Slice(x, start, four, axis)
  computed_end = Slice(x, start, end, axis)
  y = Neg(constant_end)
  z = Neg(computed_end)
}
""")
onnx.checker.check_model(model)


def shapes(data_prop):
    inferred = infer_shapes(model, data_prop=data_prop, strict_mode=True)
    return {
        value.name: [
            "?" if dim.dim_param.startswith("unk__") or not dim.WhichOneof("value") else dim.dim_param or dim.dim_value
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in inferred.graph.value_info
        if value.name.endswith("_end")
    }


print("onnx", onnx.__version__)
found = [shapes(data_prop) for data_prop in (False, True)]
print("without data propagation:", found[0])
print("with data propagation:   ", found[1])
print("expected for computed_end: [2, '?', 'N'], since only axis 1 is sliced")
sys.exit(found != [{"constant_end": [2, 4, "N"], "computed_end": ["?", "?", "?"]}] * 2)
PYTHON
"$folder/venv/bin/python" "$folder/infer.py"
