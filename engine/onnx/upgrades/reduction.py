"""Upgrades of reductions: axes become an input, logarithms of integers need casts."""

from __future__ import annotations

from engine.ir import f64
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import cast, emit, i64s

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


@upgrade(*_REDUCTIONS, since=13, to=18)
def _axes_input(call: OldCall) -> OldCall:
    return _with_axes_input(call, 18)


@upgrade("ReduceSum", since=11, to=13)
def _sum_axes_input(call: OldCall) -> OldCall:
    return _with_axes_input(call, 13)


def _with_axes_input(call: OldCall, to: int) -> OldCall:
    """An absent or empty list of axes means all axes in both versions."""
    axes = call.integers("axes")
    return call.at(to, drop=["axes"], inputs=[call.input(0), i64s(axes)] if axes else [call.input(0)])


@upgrade("ReduceLogSum", "ReduceLogSumExp", since=18, to=28)
def _logarithm_of_integers(call: OldCall) -> Upgraded:
    """Integers were allowed; the result is truncated to an integer."""
    x = call.input(0)
    if not x.element_type.is_integral:
        return call.at(28)
    reduced = emit(call.op_type, cast(x, f64), *call.inputs[1:], **call.attributes)
    return [cast(reduced, x.element_type)]
