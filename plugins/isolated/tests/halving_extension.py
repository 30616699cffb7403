"""An extension with an operator in Python, which another process can import."""

from __future__ import annotations

import numpy as np

from engine import Extension, Operator

HALF = Operator(
    name="Half",
    domain="test.isolated",
    inputs=["x"],
    infer=lambda inputs, attributes: inputs[0],
    evaluate=lambda x: x / np.float32(2),
)
EXTENSION = Extension("halving", "1.0", [HALF])
