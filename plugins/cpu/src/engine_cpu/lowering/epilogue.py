"""What the fused operators end with, as attributes of the kernels that end with it."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause
from engine.native import Attribute

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


def check_activation(node: Node) -> Refusal | None:
    """A refusal where a fused operator ends with an activation that kernels do not have."""
    name = node.attributes.get("activation", "")
    if name and name not in _ACTIVATIONS:
        return Refusal(RefusalCause.ATTRIBUTE, f"activation is {name}; expected one of {', '.join(_ACTIVATIONS)}")
    return None


def activation_attributes(node: Node) -> dict[str, Attribute]:
    """`activation`, `alpha` and `beta` of the kernels; empty where the node ends without one."""
    name = node.attributes.get("activation", "")
    if not name:
        return {}
    number, *fixed = _ACTIVATIONS[name]
    given = iter(node.attributes.get("activation_parameters") or ())
    alpha, beta = (float(next(given)) if value is None else value for value in fixed)
    return {"activation": number, "alpha": alpha, "beta": beta}
