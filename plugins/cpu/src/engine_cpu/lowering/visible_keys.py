"""Masks that let each query see the keys up to its own, as GroupQueryAttention computes them."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Output
from engine.ops.gather import TensorScatterSpec
from engine_cpu.in_place import InPlace
from engine_cpu.layout import static_shape

_VIEWS: Final = ("Reshape", "Squeeze", "Unsqueeze")


def is_up_to_own(mask: Output, state: InPlace) -> bool:
    """Whether `mask` is: key <= p + query, where p is the position at which the keys of `state` are written.

    A plan that appends to a variable in place checks that p is the length of its past, so that the mask follows from
    the lengths.
    """
    if not state.is_assumed or mask.node.op_type != "LessOrEqual" or mask.node.domain:
        return False
    keys, own = mask.node.input_value(0), mask.node.input_value(1)
    shape = static_shape(own)
    if len(shape) != 4 or shape[1] != 1 or shape[3] != 1 or not _counts(keys, state.shape[state.axis]):
        return False
    batch, queries = shape[0], shape[2]
    positions = _viewed(own)
    if positions.node.op_type == "Add" and not positions.node.domain and static_shape(positions) == (batch, queries):
        first, rows = positions.node.input_value(0), positions.node.input_value(1)
        if static_shape(first) != (batch, 1) or not _counts(rows, queries):
            return False
        positions = _viewed(first)
    elif queries != 1:
        return False
    return positions == TensorScatterSpec.of(state.present.node).write_indices


def _viewed(value: Output) -> Output:
    """The value whose elements this one has, in the same order."""
    while value.node.op_type in _VIEWS and not value.node.domain:
        value = value.node.input_value(0)
    return value


def _counts(value: Output, length: int) -> bool:
    """Whether a value is 0, 1, 2 and so on."""
    node = value.node
    return isinstance(node, Constant) and node.shape == (length,) and bool((node.data == np.arange(length)).all())
