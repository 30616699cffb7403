"""Upgrades of RNN, GRU and LSTM."""

from __future__ import annotations

from engine.onnx.upgrades.call import OldCall, upgrade


@upgrade("LSTM", "RNN", since=1, to=7)
@upgrade("GRU", since=3, to=7)
def _without_output_sequence(call: OldCall) -> OldCall:
    """`output_sequence` said whether Y is needed, which is redundant with the list of outputs."""
    return call.at(7, drop=["output_sequence"])


@upgrade("GRU", since=1, to=3)
def _direction_name(call: OldCall) -> OldCall:
    """The default direction was misspelt, so models that state it may also be misspelt."""
    if call.text("direction", "forward") == "foward":
        return call.at(3, direction="forward")
    return call.at(3)
