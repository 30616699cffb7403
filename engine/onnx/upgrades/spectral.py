"""Upgrades of DFT from versions before 20."""

from __future__ import annotations

from engine.onnx.upgrades.call import OldCall, upgrade
from engine.onnx.upgrades.emit import i64_scalar


@upgrade("DFT", since=17, to=20)
def _axis_input(call: OldCall) -> OldCall:
    """The axis became an input, and its default changed."""
    length = call.input(1) if call.has_input(1) else None
    return call.at(20, drop=["axis"], inputs=[call.input(0), length, i64_scalar(call.integer("axis", 1))])
