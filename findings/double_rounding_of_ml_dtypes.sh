#!/usr/bin/env bash
# ml_dtypes rounds doubles to bfloat16 and 8-bit floats twice: first to float32, then to the narrow type.
set -euo pipefail
ml_dtypes=0.6.0 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ml_dtypes==$ml_dtypes" "numpy==$numpy"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

print("ml_dtypes", ml_dtypes.__version__, "numpy", np.__version__)
wrong = {}
for dtype, fraction in ((ml_dtypes.bfloat16, 7), (ml_dtypes.float8_e4m3fn, 3), (ml_dtypes.float8_e5m2, 2)):
    # A little above the middle of 1 and the next number: nearest is the next number.
    step = 2.0**-fraction
    value = np.float64(1 + step / 2 + 2.0**-40)
    got = float(value.astype(dtype))
    print(f"{np.dtype(dtype).name}: {value!r} becomes {got}; nearest is {1 + step}, the distances are "
          f"{abs(value - got):.17g} and {abs(value - 1 - step):.17g}")
    wrong[np.dtype(dtype).name] = got == 1.0
half = float(np.float64(1 + 2.0**-11 + 2.0**-40).astype(np.float16))
print("numpy's own float16 rounds once:", half == 1 + 2.0**-10)
sys.exit(not (all(wrong.values()) and half == 1 + 2.0**-10))
PYTHON
