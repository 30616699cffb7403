"""The epilogues of fused operators, as kernel attributes."""

from __future__ import annotations

import math
from typing import Final

from engine.native import Attribute
from engine.ops.fused_activation import Activation

_RELU: Final = ("clip", 0.0, math.inf)
# Name: the kernels' name of the activation, then alpha and beta; None for a parameter of the node.
_ACTIVATIONS: Final[dict[str, tuple[str, float | None, float | None]]] = {
    "Relu": _RELU,
    "Clip": ("clip", None, None),
    "LeakyRelu": ("leaky_relu", None, 0.0),
    "Sigmoid": ("sigmoid", 0.0, 0.0),
    "Tanh": ("tanh", 0.0, 0.0),
    "Gelu": ("gelu", 0.0, 0.0),
    "GeluTanh": ("gelu_tanh", 0.0, 0.0),
    "Swish": ("silu", None, 0.0),
    "HardSigmoid": ("hard_sigmoid", None, None),
    "HardSwish": ("hard_swish", 1 / 6, 0.5),
    "Elu": ("elu", None, 0.0),
    "Mish": ("mish", 0.0, 0.0),
}


def activation_attributes(activation: Activation | None) -> dict[str, Attribute]:
    """The kernel attributes `activation`, `alpha` and `beta`; empty without an activation.

    A Clip whose minimum is above its maximum gives the maximum; kernels need ordered limits.
    """
    if activation is None:
        return {}
    kernels_name, *fixed = _ACTIVATIONS[activation.name]
    given = iter(activation.parameters)
    alpha, beta = (float(next(given)) if value is None else value for value in fixed)
    if kernels_name == "clip" and alpha > beta:
        alpha = beta
    return {"activation": kernels_name, "alpha": alpha, "beta": beta}
