"""The epilogues of fused operators, as kernel attributes."""

from __future__ import annotations

import math

from engine.native import Attribute, pointwise_functions
from engine.ops.fused_activation import Activation


def activation_attributes(activation: Activation | None) -> dict[str, Attribute]:
    """The kernel attributes `activation`, `alpha` and `beta`; empty without an activation.

    A Clip whose minimum is above its maximum gives the maximum; kernels need ordered limits.
    """
    if activation is None:
        return {}
    if activation.name == "Relu":
        return {"activation": "clip", "alpha": 0.0, "beta": math.inf}
    alpha, beta, *_ = (*map(float, activation.parameters), 0.0, 0.0)
    if activation.name == "Clip":
        alpha = min(alpha, beta)
    return {"activation": pointwise_functions()[activation.name].opcode, "alpha": alpha, "beta": beta}
