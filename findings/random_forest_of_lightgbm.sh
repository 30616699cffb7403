#!/usr/bin/env bash
# A random forest of LightGBM, converted by onnxmltools, predicts something else, unless it has 100 trees.
set -euo pipefail
onnxmltools=1.16.0 lightgbm=4.7.0 skl2onnx=1.20.0 scikit_learn=1.9.1 onnxruntime=1.32.0 onnx=1.23.2 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "onnxmltools==$onnxmltools" "lightgbm==$lightgbm" "skl2onnx==$skl2onnx" \
    "scikit-learn==$scikit_learn" "onnxruntime==$onnxruntime" "onnx==$onnx" "numpy==$numpy"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import lightgbm
import numpy as np
import onnxmltools
import onnxruntime
from onnxmltools.convert.common.data_types import FloatTensorType

warnings.simplefilter("ignore")
print("onnxmltools", onnxmltools.__version__, "lightgbm", lightgbm.__version__, "onnxruntime", onnxruntime.__version__)
rng = np.random.default_rng(1)
x = rng.standard_normal((200, 5)).astype(np.float32)
y = x @ [0, 2, 0, -1, 0.5] + 3


def deviation(trees, **options):
    model = lightgbm.LGBMRegressor(n_estimators=trees, verbose=-1, random_state=0, n_jobs=1, **options).fit(x, y)
    proto = onnxmltools.convert_lightgbm(model, initial_types=[("x", FloatTensorType([None, 5]))], target_opset=15)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found, expected = session.run(None, {"x": x})[0].ravel(), model.predict(x)
    print(trees, "trees", options, "\n    LightGBM", expected[:4].round(4), "\n    ONNX    ", found[:4].round(4))
    return abs(found - expected).max()


forest = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
boosted, small, default = deviation(15), deviation(15, **forest), deviation(100, **forest)
print(f"largest deviation: boosted {boosted:.1e}, forest of 15 trees {small:.1e}, of 100 trees {default:.1e}; "
      "expected: rounding in all")
sys.exit(not (boosted < 1e-4 and small > 0.5 and default < 1e-4))
PYTHON
