"""`HardSwishFusion`: the forms of x * clip(x + 3, 0, 6) / 6 become the operator."""

from __future__ import annotations

from engine import ops
from engine.ir import bf16, f16, f32
from engine.passes.common.gelu_fusion import product
from engine.passes.fusion import FusionPass
from engine.passes.pattern import any_input, any_of, attrs_match, type_matches, wrap_const, wrap_type


class HardSwishFusion(FusionPass):
    """Recognises x * HardSigmoid(x, 1/6, 0.5), and Clip(x + 3, 0, 6) times x divided by 6, as `HardSwish`.

    f64 is left alone: the attribute of HardSigmoid is f32, so that it is not 1/6.
    """

    makes = frozenset({"HardSwish"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input(type_matches(f16, bf16, f32))
        is_sixth = lambda alpha: abs(alpha - 1 / 6) < 1e-6  # noqa: E731
        gate = wrap_type("HardSigmoid", [x], attrs_match(alpha=is_sixth, beta=0.5))
        clipped = wrap_type("Clip", [wrap_type("Add", [x, wrap_const(3)]), wrap_const(0), wrap_const(6)])
        six, sixth = wrap_const(6), wrap_const(1 / 6)
        root = any_of(
            [
                wrap_type("Mul", [x, gate]),
                wrap_type("Div", [wrap_type("Mul", [x, clipped]), six]),
                wrap_type("Mul", [x, wrap_type("Div", [clipped, six])]),
                product(x, clipped, sixth),
            ]
        )
        self.register_fusion(root, lambda m: ops.HardSwish(m.pattern_value_map[x]))
