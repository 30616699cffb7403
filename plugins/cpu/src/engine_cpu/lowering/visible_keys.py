"""Masks that let each query see the keys up to its own, or the last of them, as GroupQueryAttention computes them."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Output
from engine.ops.gather import TensorScatterSpec
from engine_cpu.in_place import InPlace
from engine_cpu.layout import static_shape

_VIEWS: Final = ("Reshape", "Squeeze", "Unsqueeze")


def window_up_to_own(mask: Output, state: InPlace) -> int | None:
    """How many keys before its own each query sees, if `mask` is: p + query - before <= key <= p + query, where p is
    the position at which the keys of `state` are written; -1 for all of them, None for any other mask.

    A plan that appends to a variable in place checks that p is the length of its past, so that the mask follows from
    the lengths.
    """
    if not state.is_assumed:
        return None
    if _is(mask, "LessOrEqual"):
        return -1 if _are_keys_and_own(mask, state) else None
    if not _is(mask, "And"):
        return None
    up_to, since = mask.node.input_value(0), mask.node.input_value(1)
    if not _is(up_to, "LessOrEqual") or not _are_keys_and_own(up_to, state) or not _is(since, "Greater"):
        return None
    keys, first = since.node.input_value(0), since.node.input_value(1)
    if not _is(first, "Sub") or not _counts(keys, state.shape[state.axis]):
        return None
    own, window = first.node.input_value(0), first.node.input_value(1).node
    if not isinstance(window, Constant) or window.data.size != 1 or not _is_own(own, state):
        return None
    length = int(window.data.item())
    return length - 1 if length > 0 else None


def _is(value: Output, op_type: str) -> bool:
    return value.node.op_type == op_type and not value.node.domain


def _are_keys_and_own(compared: Output, state: InPlace) -> bool:
    """Whether a comparison is of the keys, and of the position of each query."""
    keys, own = compared.node.input_value(0), compared.node.input_value(1)
    return _counts(keys, state.shape[state.axis]) and _is_own(own, state)


def _is_own(own: Output, state: InPlace) -> bool:
    """Whether a value, [B, 1, S, 1], is the position of each query."""
    shape = static_shape(own)
    if len(shape) != 4 or shape[1] != 1 or shape[3] != 1:
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
