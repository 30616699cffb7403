"""`IntegerProductDecomposition`: MatMulInteger and ConvInteger by operators of f32, where these are exact."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, i8, i32, u8
from engine.passes.fusion import FusionPass
from engine.passes.pattern import wrap_type

_MAX_TERMS: Final = 2**24 // 255**2
"""Sums of this many products of differences of 8-bit integers are exact in f32, in any order."""


class IntegerProductDecomposition(FusionPass):
    """Decomposes a MatMulInteger or ConvInteger with short sums into Cast, Sub, MatMul or Conv, and Cast.

    Exact, since all sums have at most 258 products, so that every partial sum is an integer that f32 represents. Longer
    sums stay, and so does a node whose lengths are not known. For devices that have no integer kernel for the node,
    so disabled unless a `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_fusion(wrap_type(["MatMulInteger", "ConvInteger"]), lambda m: _decomposed(m.match_root))


def _decomposed(node: Node) -> list[Node] | None:
    is_conv = node.op_type == "ConvInteger"
    a, b = node.input_value(0), node.input_value(1)
    if not b.shape.is_static or a.shape.rank.is_dynamic or not all(x.element_type in (u8, i8) for x in (a, b)):
        return None
    lengths = b.shape.get_shape()
    terms = math.prod(lengths[1:]) if is_conv else lengths[-2] if len(lengths) > 1 else lengths[0]
    if terms > _MAX_TERMS:
        return None
    made: list[Node] = []
    # A zero point for each row of a matrix a, or for each output channel of weights.
    left = _centered(node, 0, [-1] if not is_conv else [], made)
    right = _centered(node, 1, list(range(1, len(lengths))) if is_conv else [], made)
    if left is None or right is None:
        return None
    product = ops.create("Conv" if is_conv else "MatMul", [left, right], node.attributes)
    return [*made, product, ops.Cast(product, to=i32.onnx)]


def _centered(node: Node, index: int, axes: list[int], made: list[Node]) -> Node | None:
    """Input `index` minus its zero point, in f32; a vector of zero points gets `axes`."""
    value: Node = ops.Cast(node.input_value(index), to=f32.onnx)
    made.append(value)
    zero: Output | None = node.input_value(index + 2) if node.has_input(index + 2) else None
    if zero is None:
        return value
    if zero.shape.rank.is_dynamic or zero.shape.rank.min > 1 or not zero.shape.is_static:
        return None
    wide: Node = ops.Cast(zero, to=f32.onnx)
    made.append(wide)
    if zero.shape.size() != 1 and axes:
        wide = ops.Unsqueeze(wide, Constant(np.array(axes, np.int64)))
        made.append(wide)
    elif zero.shape.rank == 1 and zero.shape.size() == 1:
        wide = ops.Squeeze(wide, Constant(np.array([0], np.int64)))
        made.append(wide)
    made.append(ops.Sub(value, wide))
    return made[-1]
