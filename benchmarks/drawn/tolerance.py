"""How much two correct results of a block in f32 may differ."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx

from engine.testing.networks.arithmetic import reduction_lengths, value_shapes

_POOLS: Final = ("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "ScatterElements", "ScatterND")
_NORMS: Final = ("LayerNormalization", "Softmax", "LogSoftmax")
_FUNCTION_ERROR: Final = 4
"""Units in the last place by which an exponential or an error function of an engine may be off."""


def block_tolerance(model: onnx.ModelProto) -> float:
    """The largest deviation relative to the largest absolute value, as `rounding_tolerance` derives it.

    Blocks without products consist of sums of pools and norms and of functions, so these count, too: a sum of K values
    is off by u sqrt(K) of their spread, and each node's functions by a few u.
    """
    shapes = value_shapes(model)
    lengths = reduction_lengths(model) + [_FUNCTION_ERROR**2 for _ in model.graph.node]
    for node in model.graph.node:
        given = shapes[node.input[0]]
        if node.op_type in _POOLS:
            lengths.append(max(1, math.prod(given) // max(math.prod(shapes[node.output[0]]), 1)))
        elif node.op_type in _NORMS:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
            lengths.append(given[axis])
        elif node.op_type == "InstanceNormalization":
            lengths.append(math.prod(given[2:]))
    return 4 * float(np.finfo(np.float32).eps) * math.sqrt(1 + sum(lengths))
