"""`MishFusion`: x * tanh(softplus(x)) becomes the operator."""

from __future__ import annotations

from engine import ops
from engine.passes.fusion import FusionPass
from engine.passes.pattern import any_input, wrap_type


class MishFusion(FusionPass):
    """Recognises x * Tanh(Softplus(x)) as `Mish`."""

    makes = frozenset({"Mish"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input()
        root = wrap_type("Mul", [x, wrap_type("Tanh", [wrap_type("Softplus", [x])])])
        self.register_fusion(root, lambda m: ops.Mish(m.pattern_value_map[x]))
