"""Recurrent networks and perceptrons with seeded random weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.testing.networks.builder import AFTER_RELU, NetworkBuilder, SeededNetwork


def lstm(seed: int = 0, *, steps: int = 100, width: int = 256, hidden: int = 256, layers: int = 2) -> SeededNetwork:
    """Bidirectional LSTM layers on [1, steps, width], with the gates reordered in the graph as exporters do."""
    return _recurrent(NetworkBuilder("lstm", seed), "LSTM", steps, width, hidden, layers)


def gru(seed: int = 0, *, steps: int = 100, width: int = 128, hidden: int = 128, layers: int = 2) -> SeededNetwork:
    """Bidirectional GRU layers on [1, steps, width]."""
    return _recurrent(NetworkBuilder("gru", seed), "GRU", steps, width, hidden, layers)


def _recurrent(g: NetworkBuilder, op_type: str, steps: int, width: int, hidden: int, layers: int) -> SeededNetwork:
    x = g.transpose(g.input("x", 1, steps, width), 1, 0, 2)
    # The positions of the framework's gates in ONNX order: i, o, f, c from i, f, c, o; z, r, h from r, z, h.
    order, attributes = ((0, 3, 1, 2), {}) if op_type == "LSTM" else ((1, 0, 2), {"linear_before_reset": 1})
    for _ in range(layers):
        depth = g.shape(x)[2]
        weights = _gates(g, order, hidden, depth, columns=depth)
        recurrent = _gates(g, order, hidden, hidden, columns=hidden)
        biases = [_sides(g, [g.add("Concat", _gate(g, order, hidden), _gate(g, order, hidden), axis=0)
                             for _ in range(2)])]  # fmt: skip
        states = [g.constant(np.zeros((2, 1, hidden), np.float32)) for _ in range(2 if op_type == "LSTM" else 1)]
        y = g.add(op_type, x, weights, recurrent, *biases, "", *states,
                  hidden_size=hidden, direction="bidirectional", **attributes)  # fmt: skip
        x = g.reshape(g.transpose(y, 0, 2, 1, 3), steps, 1, 2 * hidden)
    return g.finish(g.transpose(x, 1, 0, 2))


def _gates(g: NetworkBuilder, order: Sequence[int], hidden: int, fan_in: int, columns: int) -> str:
    """The weights of both directions, [2, gates * hidden, columns]."""
    return _sides(g, [_gate(g, order, hidden, fan_in, columns) for _ in range(2)])


def _sides(g: NetworkBuilder, sides: Sequence[str]) -> str:
    return g.add("Concat", *(g.add("Unsqueeze", side, g.ints(0)) for side in sides), axis=0)


def _gate(g: NetworkBuilder, order: Sequence[int], hidden: int, fan_in: int = 1, columns: int = 0) -> str:
    """One direction's gates in the framework's order, sliced and rearranged to ONNX order."""
    rows = len(order) * hidden
    whole = g.weight(rows, columns, fan_in=fan_in) if columns else g.bias(rows)
    slices = [g.add("Slice", whole, g.ints(index * hidden), g.ints((index + 1) * hidden), g.ints(0)) for index in order]
    return g.add("Concat", *slices, axis=0)


def mlp(seed: int = 0, *, width: int = 128, layers: int = 4) -> SeededNetwork:
    """A perceptron so small that the call overhead dominates."""
    g = NetworkBuilder("mlp", seed)
    x = g.gemm(g.input("x", 1, width), width)
    for _ in range(layers - 1):
        x = g.gemm(g.relu(x), width, AFTER_RELU)
    return g.finish(x)
