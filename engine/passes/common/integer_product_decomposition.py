"""`IntegerProductDecomposition`: MatMulInteger and ConvInteger by operators of f32, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, i8, i32, u8
from engine.ops.conv import ConvSpec
from engine.ops.windows import Window
from engine.passes.fusion import FusionPass
from engine.passes.pattern import wrap_type

_EXACT: Final = 2**24
"""Integers up to this magnitude are exact in f32."""
_MAX_DIFFERENCE: Final = 255
"""The magnitude of a difference of 8-bit integers."""
_DIGIT: Final = 16
"""The base of digits: the higher one is from -16 to 15, the lower one from 0 to 15."""


class IntegerProductDecomposition(FusionPass):
    """Decomposes a MatMulInteger or ConvInteger into Cast, Sub, MatMul or Conv, and Cast.

    Exact modulo 2^32, since every partial sum is an integer that f32 represents. For this, sums of more than 258
    products are computed from two digits of each weight, by two products, and sums of more than 4112 from two digits of
    both operands, by four. A node with sums of more than 65536 products or of unknown length stays.
    """

    makes = frozenset({"Add", "Cast", "Conv", "Floor", "MatMul", "Mul", "Sub"})

    removes = frozenset({"ConvInteger", "MatMulInteger"})

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
    if terms * _DIGIT**2 > _EXACT:
        return None
    made: list[Node] = []
    # A zero point for each row of a matrix a, or for each output channel of weights.
    left = _centered(node, 0, [-1] if not is_conv else [], made)
    right = _centered(node, 1, list(range(1, len(lengths))) if is_conv else [], made)
    if left is None or right is None:
        return None
    attributes = node.attributes
    if is_conv and _may_be_transformed(ConvSpec.of(node).window(lengths[2:]), attributes):
        right, attributes = _widened(right, ConvSpec.of(node), made)
    rights = _digits(right, made) if terms * _MAX_DIFFERENCE**2 > _EXACT else [right]
    lefts = _digits(left, made) if terms * _MAX_DIFFERENCE * _DIGIT > _EXACT else [left]
    kind = "Conv" if is_conv else "MatMul"
    for i, x in enumerate(lefts):
        for j, y in enumerate(rights):
            before = made[-1]
            product = ops.create(kind, [x, y], attributes)
            made += [product, ops.Cast(product, to=i32.onnx)]
            if i + j:
                weighted = ops.Mul(made[-1], Constant(_DIGIT ** (i + j), i32))
                made += [weighted, ops.Add(before, weighted)]
    return made


def _may_be_transformed(window: Window, attributes: Mapping[str, Any]) -> bool:
    """Whether a device may compute a convolution of f32 by transforms, which round: of 3x3 with stride 1."""
    steps = window.strides + window.dilations
    return window.kernel == (3, 3) and set(steps) == {1} and attributes.get("group", 1) == 1


def _widened(weights: Node, spec: ConvSpec, made: list[Node]) -> tuple[Node, dict[str, Any]]:
    """Weights with a column of zeros, for which devices have no transforms, and the attributes of their convolution."""
    made.append(ops.Pad(weights, Constant(np.array([0] * 7 + [1], np.int64))))
    (top, bottom), (left, right) = spec.window((3, 3)).pads or ((1, 1), (1, 1))
    return made[-1], {"pads": [top, left, bottom, right + 1]}


def _digits(value: Node, made: list[Node]) -> list[Node]:
    """The lower and the higher digit of integers."""
    quotient = ops.Mul(value, Constant(1 / _DIGIT, f32))
    high = ops.Floor(quotient)
    whole = ops.Mul(high, Constant(_DIGIT, f32))
    low = ops.Sub(value, whole)
    made += [quotient, high, whole, low]
    return [low, high]


def _centered(node: Node, index: int, axes: list[int], made: list[Node]) -> Node | None:
    """Input `index` minus its zero point, in f32; a vector of zero points gets `axes`.

    A matrix of a product may have them in its own shape, with 1 for the axis of the sums: scales of rows or columns.
    """
    value: Node = ops.Cast(node.input_value(index), to=f32.onnx)
    made.append(value)
    zero: Output | None = node.input_value(index + 2) if node.has_input(index + 2) else None
    if zero is None:
        return value
    if not zero.shape.is_static or (zero.shape.rank.min > 1 and node.op_type == "ConvInteger"):
        return None
    wide: Node = ops.Cast(zero, to=f32.onnx)
    made.append(wide)
    if zero.shape.rank == 1 and zero.shape.size() != 1 and axes:
        wide = ops.Unsqueeze(wide, Constant(np.array(axes, np.int64)))
        made.append(wide)
    elif zero.shape.rank != 0 and zero.shape.size() == 1:
        wide = ops.Squeeze(wide, Constant(np.arange(zero.shape.rank.min)))
        made.append(wide)
    made.append(ops.Sub(value, wide))
    return made[-1]
