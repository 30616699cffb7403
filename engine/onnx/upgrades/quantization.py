"""Upgrades of QuantizeLinear from versions before 19."""

from __future__ import annotations

from engine.ir import f32, i32
from engine.onnx.upgrades.call import OldCall, upgrade
from engine.onnx.upgrades.emit import cast


@upgrade("QuantizeLinear", since=13, to=19)
def _scale_of_one_type(call: OldCall) -> OldCall:
    """From 19 on, x and the scale have the same type; before, integers were divided as f32, the scale's type."""
    x, *rest = call.inputs
    if x is not None and x.element_type is i32:
        return call.at(19, inputs=[cast(x, f32), *rest])
    return call.at(19)
