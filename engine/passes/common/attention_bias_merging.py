"""`WindowMaskSinking`, `AttentionBiasMerging`: a bias and a mask that are added to scores become one sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops.tensors import Array
from engine.passes.fusion import FusionPass, derived_constant, dims_of
from engine.passes.pattern import Matcher, any_input, wrap_const, wrap_type

_MAX_BYTES: Final = 1 << 24
"""The size of scores up to which a constant of that size, the sum of a bias and masks, is worth storing."""


class WindowMaskSinking(FusionPass):
    """Adds a constant mask to scores [B * W, H, S, T] that are reshaped to [B, W, H, S, T] for it, and back.

    Swin and other models of windows have a mask for each window, [W, S, T], and the windows of all images in the batch
    dimension of the scores. Exact: the same numbers are added. Does nothing for scores of more than 16 MB, since the
    mask is repeated for each image.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scores, self._mask = any_input(), wrap_const()
        split = wrap_type("Reshape", [self._scores, any_input()])
        self._sum = wrap_type("Add", [split, self._mask])
        self.register_fusion(wrap_type("Reshape", [self._sum, any_input()]), self._make)

    def _make(self, m: Matcher) -> Sequence[Node] | None:
        values = m.pattern_value_map
        scores = values[self._scores]
        whole, split, result = (_lengths(value) for value in (scores, values[self._sum], m.match_root.output(0)))
        if whole is None or split is None or result != whole or len(split) != len(whole) + 1:
            return None
        if split[2:] != whole[1:] or math.prod(split[:2]) != whole[0]:
            return None
        mask = values[self._mask].node
        assert isinstance(mask, Constant)
        if scores.element_type.byte_size(math.prod(whole)) > _MAX_BYTES:
            return None
        shape = (1,) * (len(split) - len(mask.shape)) + tuple(mask.shape)
        if len(shape) != len(split):
            return None

        def merged(data: Array) -> Array:
            parts = np.broadcast_to(data.reshape(shape), (*split[:2], *shape[2:]))
            return np.ascontiguousarray(parts.reshape(whole[0], *shape[2:]))

        made = derived_constant([mask], (whole[0], *shape[2:]), merged)
        return [made, ops.Add(scores, made)]


class AttentionBiasMerging(FusionPass):
    """Turns Softmax((scores + a) + b) into Softmax(scores + (a + b)), so that attention has one mask.

    Exact to the rounding of a sum of three numbers. Does nothing if scores are neither a product nor a scaled one, or
    if `a + b` would be a large constant made of two small ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scores = wrap_type(["MatMul", "Mul", "Div"])
        self._first, self._second = any_input(), any_input()
        self._inner = wrap_type("Add", [self._scores, self._first])
        self._outer = wrap_type("Add", [self._inner, self._second])
        self._root = wrap_type("Softmax", [self._outer])
        self.register_fusion(self._root, self._make)

    def _make(self, m: Matcher) -> Sequence[Node] | None:
        values = m.pattern_value_map
        scores, first, second = (values[place] for place in (self._scores, self._first, self._second))
        if not _is_product(scores.node) or dims_of(scores) is None or dims_of(scores) != dims_of(values[self._outer]):
            return None
        a, b = dims_of(first), dims_of(second)
        if a is None or b is None:
            return None
        merged = ops.Add(first, second)
        shape = merged.output(0).shape
        if isinstance(first.node, Constant) and isinstance(second.node, Constant):
            stored = first.node.byte_size + second.node.byte_size
            if first.element_type.byte_size(shape.size()) > max(_MAX_BYTES, stored):
                return None
        total = ops.Add(scores, merged)
        return [merged, total, values[self._root].node.clone_with_new_inputs([total])]


def _is_product(node: Node) -> bool:
    """Whether `node` is a product of two computed matrices, or a number times one."""
    while node.op_type in ("Mul", "Div"):
        operands = [value for value in node.input_values if value is not None and not isinstance(value.node, Constant)]
        if len(operands) != 1:
            return False
        node = operands[0].node
    return node.op_type == "MatMul" and not any(
        isinstance(v.node, Constant) for v in node.input_values if v is not None
    )


def _lengths(value: Output) -> tuple[int, ...] | None:
    """The lengths of all dimensions if they are known."""
    dims = dims_of(value)
    if dims is None or not all(dim.is_static for dim in dims):
        return None
    return tuple(dim.min for dim in dims)
