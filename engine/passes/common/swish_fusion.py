"""`SwishFusion`: x * sigmoid(x), SiLU to PyTorch, becomes the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, bf16, f16, f32
from engine.passes.fusion import FusionPass, scalar
from engine.passes.pattern import Matcher, any_input, any_of, type_matches, wrap_const, wrap_type


class SwishFusion(FusionPass):
    """Recognises x * Sigmoid(x) and x * Sigmoid(alpha * x) with a constant alpha as `Swish`.

    Does nothing where `SwishDecomposition` is enabled: that is for devices without the operator.
    """

    makes = frozenset({"Swish"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input(type_matches(f16, bf16, f32))
        alpha = wrap_const()
        gate = any_of([wrap_type("Sigmoid", [x]), wrap_type("Sigmoid", [wrap_type("Mul", [x, alpha])])])

        def make(m: Matcher) -> Node | None:
            if self.config is not None and self.config.is_enabled("SwishDecomposition", False):
                return None
            value = m.pattern_value_map[x]
            if alpha not in m.pattern_value_map:
                return ops.Swish(value)
            number = scalar(m.pattern_value_map[alpha])
            return None if number is None else ops.Swish(value, alpha=number)

        self.register_fusion(wrap_type("Mul", [x, gate]), make)
