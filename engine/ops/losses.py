"""Losses: their spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.ir import Node
from engine.ops.spec import OperatorSpec, check_choice, specifies


@specifies("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec(OperatorSpec):
    """A loss of each sample, or their sum or mean; labels of `ignore_index` do not count, None is for no label."""

    ignore_index: int | None
    reduction: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        check_choice(node, "reduction", given["reduction"], ("none", "sum", "mean"))
