"""What the fused operators end with, as attributes of the kernels that end with it."""

from __future__ import annotations

import math
from typing import Final

from engine.native import Attribute
from engine.ops.fused_activation import Activation

_RELU: Final = (0, 0.0, math.inf)
# Name: the kernels' number of the activation, then alpha and beta; None where it is a parameter of the node.
_ACTIVATIONS: Final[dict[str, tuple[int, float | None, float | None]]] = {
    "Relu": _RELU,
    "Clip": (0, None, None),
    "LeakyRelu": (1, None, 0.0),
    "Sigmoid": (2, 0.0, 0.0),
    "Tanh": (3, 0.0, 0.0),
    "Gelu": (4, 0.0, 0.0),
    "GeluTanh": (5, 0.0, 0.0),
    "Swish": (6, None, 0.0),
    "HardSigmoid": (7, None, None),
    "HardSwish": (8, 1 / 6, 0.5),
    "Elu": (9, None, 0.0),
    "Mish": (10, 0.0, 0.0),
}


def activation_attributes(activation: Activation | None) -> dict[str, Attribute]:
    """`activation`, `alpha` and `beta` of the kernels; empty where the node ends without one."""
    if activation is None:
        return {}
    number, *fixed = _ACTIVATIONS[activation.name]
    given = iter(activation.parameters)
    alpha, beta = (float(next(given)) if value is None else value for value in fixed)
    return {"activation": number, "alpha": alpha, "beta": beta}
