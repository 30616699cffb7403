"""`ChannelShuffle`, an internal operator that interleaves groups of channels, as ShuffleNet does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail, tensor_type
from engine.ops.spec import OperatorSpec, refuse, refuse_rank, specifies
from engine.startup import dataclass


@specifies("ChannelShuffle", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelShuffleSpec(OperatorSpec):
    """ChannelShuffle. `groups` must divide the number of channels."""

    groups: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        shape, groups = tensor_type(node, 0).shape, given["groups"]
        if groups < 1:
            refuse(node, "groups", groups, "1 or more")
        if shape.rank.is_dynamic:
            return
        if len(shape) < 2:
            refuse_rank(node, 0, len(shape), "2 or more, [N, C, ...]")


def ChannelShuffle(x: OutputLike, *, groups: int) -> Node:  # noqa: N802 - as the operators are called
    """Interleave the channels of `x`, [N, C, ...]: the first of each of `groups` groups, then the second, and so on."""
    return create("ChannelShuffle", [x], {"groups": groups}, domain=INTERNAL_DOMAIN)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    (x,) = padded(inputs, 1)
    assert x is not None
    groups = ChannelShuffleSpec.of(node).groups
    if x.shape.rank.is_dynamic or len(x.shape) < 2 or x.shape[1].is_dynamic:
        fail(node, f"input 0 (X) must be [N, C, ...] with a known C, got {x.type}")
    channels = x.shape[1].get_length()
    if channels % groups:
        refuse(node, "groups", groups, f"a divisor of the {channels} channels")
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
    "Interleaves groups of channels: the first channel of every group, then the second of every group, and so on.",
)
