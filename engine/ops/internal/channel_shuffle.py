"""`ChannelShuffle`: channels of several groups in turns, in one step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import Constant, Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN, attribute
from engine.ops.rules import fail


def ChannelShuffle(x: OutputLike, *, groups: int) -> Node:  # noqa: N802 - as the operators are called
    """Of `x`, [N, C, ...]: the first channel of each of `groups` groups, then the second of each, and so on."""
    return create("ChannelShuffle", [x], {"groups": groups}, domain=INTERNAL_DOMAIN)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    (x,) = padded(inputs, 1)
    assert x is not None
    groups = int(attribute(node, "groups"))
    if x.shape.rank.is_dynamic or len(x.shape) < 2 or x.shape[1].is_dynamic:
        fail(node, f"input 0 (X) must be [N, C, ...] with a known C, got {x.type}")
    channels = x.shape[1].get_length()
    if groups < 1 or channels % groups != 0:
        fail(node, f"{channels} channels are not divisible into {groups} groups")
    dims = [dim.get_length() if dim.is_static else -1 for dim in x.shape.dims[2:]]
    is_known = all(dim > 0 for dim in dims)  # in a Reshape, 0 has another meaning
    pixels = math.prod(dims) if is_known else -1
    split = create("Reshape", [x, Constant(np.array([0, groups, channels // groups, pixels]))])
    turned = create("Transpose", [split], {"perm": [0, 2, 1, 3]})
    shape = Constant(np.array([0, channels, *dims])) if is_known else create("Shape", [x])
    return [create("Reshape", [turned, shape]).output(0)]


define(
    "ChannelShuffle",
    [("X", False)],
    {"groups": 1},
    _decompose,
    "The first channel of each of several groups of channels, then the second of each, and so on.",
)
