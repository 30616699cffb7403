#!/usr/bin/env bash
# onnx.numpy_helper.from_dict (onnx 1.23.2) cannot write a map with string keys, such as a classifier with string labels
# gives: it passes the key to numpy as the name of a type, so that the error depends on how the label is spelled.
#
# Expected: MapProto has a field for string keys, so from_dict fills it, as to_dict reads it.
# Seen: "setosa" is "not understood" as a data type, "f4" is an unsupported key type (float), "a" is bytes of type S.
#       A map of integer keys is written. to_dict reads string keys, as bytes, not str.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
from onnx import MapProto, TensorProto, numpy_helper

print("onnx", onnx.__version__, "numpy", np.__version__)


def outcome(key: object) -> str:
    try:
        numpy_helper.from_dict({key: np.float32(0.5)})
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "written"


found = {key: outcome(key) for key in (3, "setosa", "f4", "i8", "a")}
for key, text in found.items():
    print(f"  from_dict with the key {key!r}: {text}")
expected = {3: "written", "setosa": "TypeError", "f4": "TypeError", "i8": "TypeError", "a": "ValueError"}
assert all(found[key].startswith(start) for key, start in expected.items()), "the behaviour has changed"

proto = MapProto(key_type=TensorProto.STRING)
proto.string_keys.append(b"setosa")
proto.values.CopyFrom(numpy_helper.from_list([np.float32(0.5)]))
keys = list(numpy_helper.to_dict(proto))
print("  to_dict of a map with the key 'setosa':", keys)
assert keys == [b"setosa"], "the behaviour has changed"
PY
