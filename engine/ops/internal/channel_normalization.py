"""`ChannelNormalization`: layer normalization over the channels of [N, C, ...]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ir import ElementType, Node, Output, OutputLike, PartialShape
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.normalization import stash_type as stash_type_of
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, specifies
from engine.startup import dataclass


def ChannelNormalization(  # noqa: N802 - constructors of operators are called as the operators are
    x: OutputLike,
    scale: OutputLike,
    bias: OutputLike | None = None,
    *,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Node:
    """LayerNormalization over axis 1 of `x`: [N, C, ...], with `scale` and `bias`: [C]."""
    attributes = {"epsilon": epsilon, "stash_type": stash_type}
    return create("ChannelNormalization", [x, scale, bias], attributes, domain=INTERNAL_DOMAIN)


@specifies("ChannelNormalization", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelNormalizationSpec(OperatorSpec):
    """The attributes of LayerNormalization except its axis, which is 1."""

    epsilon: float
    stash_type: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["stash_type"] = stash_type_of(node, given["stash_type"])


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, scale, bias = padded(inputs, 3)
    assert x is not None
    if x.shape.rank.is_dynamic or len(x.shape) < 2:
        fail(node, f"input 0 (X) must have a known rank of 2 or more ([N, C, ...]), got {x.type}")
    for value, name in ((scale, "scale"), (bias, "B")):
        if value is not None and not value.shape.compatible(PartialShape([x.shape[1]])):
            fail(node, f"{name} must have one value per channel, [{x.shape[1]}], got {value.type}")
    rank = len(x.shape)
    last = create("Transpose", [x], {"perm": (0, *range(2, rank), 1)})
    spec = ChannelNormalizationSpec.of(node)
    attributes = {"axis": -1, "epsilon": spec.epsilon, "stash_type": spec.stash_type.onnx}
    normal = create("LayerNormalization", [last, scale, bias], attributes)
    return [create("Transpose", [normal], {"perm": (0, rank - 1, *range(1, rank - 1))}).output(0)]


define(
    "ChannelNormalization",
    [("X", False), ("scale", False), ("B", True)],
    {"epsilon": 1e-5, "stash_type": 1},
    _decompose,
    "LayerNormalization over axis 1.",
)
