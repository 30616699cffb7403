"""`GeluFusion`: decomposed forms of Gelu become the operator."""

from __future__ import annotations

import math

from engine import ops
from engine.ir import Node
from engine.passes.fusion import FusionPass
from engine.passes.pattern import any_input, any_of, wrap_const, wrap_type


class GeluFusion(FusionPass):
    """Recognises x * 0.5 * (1 + erf(x / sqrt 2)), its three factors in any order, as `Gelu`."""

    makes = frozenset({"Gelu"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input()
        scaled = any_of(
            [
                wrap_type("Div", [x, wrap_const(math.sqrt(2))]),
                wrap_type("Mul", [x, wrap_const(math.sqrt(0.5))]),
            ]
        )
        gate = wrap_type("Add", [wrap_type("Erf", [scaled]), wrap_const(1.0)])
        root = product(x, wrap_const(0.5), gate)
        self.register_fusion(root, lambda m: ops.Gelu(m.pattern_value_map[x]))


class GeluTanhFusion(FusionPass):
    """Recognises x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) as `Gelu(approximate="tanh")`."""

    makes = frozenset({"Gelu"})

    def __init__(self) -> None:
        super().__init__()
        x = any_input()
        square = wrap_type("Mul", [x, x])
        cube = any_of([wrap_type("Pow", [x, wrap_const(3)]), wrap_type("Mul", [x, square])])
        inner = wrap_type("Add", [x, wrap_type("Mul", [cube, wrap_const(0.044715)])])
        scaled = wrap_type("Mul", [inner, wrap_const(math.sqrt(2 / math.pi))])
        gate = wrap_type("Add", [wrap_type("Tanh", [scaled]), wrap_const(1.0)])
        root = product(x, wrap_const(0.5), gate)
        self.register_fusion(root, lambda m: ops.Gelu(m.pattern_value_map[x], approximate="tanh"))


def product(a: Node, b: Node, c: Node) -> Node:
    """A pattern of a * b * c, with the two multiplications in any order."""
    orders = [(a, b, c), (a, c, b), (b, c, a)]
    return any_of([wrap_type("Mul", [wrap_type("Mul", [p, q]), r]) for p, q, r in orders])
