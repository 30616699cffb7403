"""Functions and control flow that onnxscript writes."""

from __future__ import annotations

import numpy as np
import onnxscript
from onnxscript import FLOAT, INT64, script
from onnxscript import opset21 as op
from onnxscript.values import Opset

from constructs.construct import Written, construct

EXPORTER = "onnxscript"
local = Opset("local", 1)
N = "N"
X = np.array([[-2, -0.5, 0], [1, 2, 3]], np.float32)


@script(local, default_opset=op)
def act(x: FLOAT, alpha: float = 0.5) -> FLOAT:
    return op.LeakyRelu(x, alpha=alpha)


@script(local, default_opset=op)
def twice(x: FLOAT, alpha: float = 0.25) -> FLOAT:
    return act(act(x, alpha=alpha))


@script(local, default_opset=op)
def chosen(x: FLOAT) -> FLOAT:
    if op.ReduceSum(x, keepdims=0) > op.Constant(value_float=0.0):  # noqa: SIM108 - onnxscript knows statements
        y = act(x)
    else:
        y = act(x, alpha=0.125)
    return y


@script(default_opset=op)
def defaults(x: FLOAT[2, 3]) -> FLOAT[2, 3]:
    return act(x)


@script(default_opset=op)
def given(x: FLOAT[2, 3]) -> FLOAT[2, 3]:
    return act(x, alpha=0.25) + twice(x)


@script(default_opset=op)
def branches(x: FLOAT[2, 3]) -> FLOAT[2, 3]:
    return chosen(x) + chosen(-x)


@script(default_opset=op)
def counted(x: FLOAT[N, 3], n: INT64) -> FLOAT[N, 3]:
    for _ in range(n):
        x = act(x) + 1.0
    return x


@script(default_opset=op)
def until(x: FLOAT[N, 3]) -> FLOAT[N, 3]:
    small = op.ReduceMax(op.Abs(x), keepdims=0) > op.Constant(value_float=0.1)
    while small:
        x = act(x) * 0.5
        small = op.ReduceMax(op.Abs(x), keepdims=0) > op.Constant(value_float=0.1)
    return x


@script(default_opset=op)
def stacked(x: FLOAT[N, 3]) -> FLOAT[N, 3]:
    @onnxscript.graph()
    def add(total: FLOAT[3], row: FLOAT[3]):
        now = op.Add(total, row)
        return now, op.Identity(now)

    _, running = op.Scan(op.Constant(value_floats=[0.0, 0.0, 0.0]), x, body=add, num_scan_inputs=1)
    return running


def _leaky(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, np.float32(alpha) * x, x)


@construct(EXPORTER, "onnxscript", name="default of a function's attribute")
def _() -> Written:
    return Written(defaults.to_model_proto(), [X], [_leaky(X, 0.5)])


@construct(EXPORTER, "onnxscript", name="attributes passed through functions")
def _() -> Written:
    once = _leaky(X, 0.25)
    return Written(given.to_model_proto(), [X], [once + _leaky(once, 0.5)])


@construct(EXPORTER, "onnxscript", name="calls in both branches of an If in a function")
def _() -> Written:
    return Written(branches.to_model_proto(), [X], [_leaky(X, 0.5) + _leaky(-X, 0.125)])


@construct(EXPORTER, "onnxscript", name="a call in a counted loop")
def _() -> Written:
    expected = X
    for _ in range(3):
        expected = _leaky(expected, 0.5) + 1
    return Written(counted.to_model_proto(), [X, np.array(3)], [expected])


@construct(EXPORTER, "onnxscript", name="a call in a while loop")
def _() -> Written:
    expected = X
    while np.abs(expected).max() > 0.1:
        expected = _leaky(expected, 0.5) * np.float32(0.5)
    return Written(until.to_model_proto(), [X], [expected])


@construct(EXPORTER, "onnxscript", name="scan")
def _() -> Written:
    return Written(stacked.to_model_proto(), [X], [np.cumsum(X, 0)])


@construct(EXPORTER, "onnxscript", name="after its optimizer")
def _() -> Written:
    from onnxscript import optimizer

    return Written(optimizer.optimize(branches.to_model_proto()), [X], [_leaky(X, 0.5) + _leaky(-X, 0.125)])
