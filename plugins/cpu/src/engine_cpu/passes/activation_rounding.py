"""Whether products with weights of few bits may round their other operand to 8 bits."""

from __future__ import annotations

from typing import Final

from engine.ops.internal import INTERNAL_DOMAIN, CompressedMatMulSpec
from engine.passes import MatcherPass
from engine.passes.pattern import Matcher, wrap_type
from engine.startup import dataclass

_INT8: Final = 4
_MAX_PIECE: Final = 256
"""Activations that share a scale belong to one block of the weights, and are at most this many."""


@dataclass(eq=False)
class ActivationRounding(MatcherPass):
    """Sets the accuracy level of `engine.CompressedMatMul` to 8 bits.

    `group_size`: the most activations that may share a scale; products that would need more stay as they are.
    """

    group_size: int

    def __post_init__(self) -> None:
        super().__init__()
        root = wrap_type(f"{INTERNAL_DOMAIN}.CompressedMatMul")
        self.register_matcher(Matcher(root, "ActivationRounding"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        spec = CompressedMatMulSpec.of(m.match_root)
        if spec.accuracy_level == _INT8 or min(spec.block_size, _MAX_PIECE) > self.group_size:
            return False
        m.match_root.set_attribute("accuracy_level", _INT8)
        return True


@dataclass(eq=False)
class ActivationRetention(MatcherPass):
    """Has each `engine.CompressedMatMul` that permits rounding to 8 bits keep the precision of f32."""

    def __post_init__(self) -> None:
        super().__init__()
        root = wrap_type(f"{INTERNAL_DOMAIN}.CompressedMatMul")
        self.register_matcher(Matcher(root, "ActivationRetention"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        if CompressedMatMulSpec.of(m.match_root).accuracy_level != _INT8:
            return False
        m.match_root.set_attribute("accuracy_level", 0)
        return True
