"""`FlattenedTransposeFusion`: a transpose between a Reshape that joins leading dimensions and one that splits them."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node
from engine.passes.common.transpose_merge import permutation
from engine.passes.fusion import FusionPass, dims_of, reshape_target, same_lengths
from engine.passes.pattern import Matcher, any_input, wrap_type


class FlattenedTransposeFusion(FusionPass):
    """Turns Reshape[B, H, S, d -> B*H, S, d] -> Transpose 021 -> Reshape[B, H, d, S] into Transpose 0132.

    PyTorch exports the transposed keys of an attention this way. Any number of leading dimensions may be joined; if
    they are split into different ones, one Reshape stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._x = any_input()
        self._joined = wrap_type("Reshape", [self._x, any_input()])
        self._turned = wrap_type("Transpose", [self._joined])
        self._root = wrap_type("Reshape", [self._turned, any_input()])
        self.register_fusion(self._root, self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        values = m.pattern_value_map
        source, middle = dims_of(values[self._x]), dims_of(values[self._joined])
        result, perm = dims_of(values[self._root]), permutation(values[self._turned].node)
        if source is None or middle is None or result is None or perm is None or perm[0] != 0:
            return None
        lead, tail = len(result) - len(middle) + 1, [middle[axis] for axis in perm[1:]]
        if lead < 1 or not same_lengths(result[lead:], tail):
            return None
        split = [*result[:lead], *middle[1:]]
        order = (*range(lead), *[lead + axis - 1 for axis in perm[1:]])
        if same_lengths(split, source):
            return [ops.Transpose(values[self._x], perm=order)]
        target = reshape_target(split, source)
        if target is None:
            return None
        whole = ops.Reshape(values[self._x], Constant(np.array(target, np.int64)))
        return [whole, ops.Transpose(whole, perm=order)]
