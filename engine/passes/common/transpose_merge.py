"""`TransposeMerge` and `TransposeToReshape`: consecutive transposes, and transposes that move no data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.limits import OverBudgetError
from engine.passes.fusion import derived_constant, dims_of, operation, replace_by, reshape_target
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.surgery import replace_output_update_name


class TransposeMerge(MatcherPass):
    """Merges Transpose(Transpose(x)) into one, or removes both if they cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Transpose"), "TransposeMerge"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        inner = operation(node.input_value(0), "Transpose")
        if inner is None or self.transformation_callback(node):
            return False
        first, second = permutation(inner), permutation(node)
        if first is None or second is None:
            return False
        joined = [first[axis] for axis in second]
        if joined == sorted(joined):
            if replace_output_update_name(node.output(0), inner.input_value(0)):
                return True
            return replace_by(node, [inner, node], [ops.Identity(inner.input_value(0))])
        return replace_by(node, [inner, node], [ops.Transpose(inner.input_value(0), perm=joined)])


class TransposeToReshape(MatcherPass):
    """Turns a Transpose that moves only dimensions of length 1 into a Reshape, which copies nothing."""

    makes = frozenset({"Reshape"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Transpose"), "TransposeToReshape"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        dims, perm = dims_of(node.input_value(0)), permutation(node)
        if dims is None or perm is None or self.transformation_callback(node):
            return False
        moved = [axis for axis in perm if dims[axis] != 1]
        if moved != sorted(moved) or perm == sorted(perm):
            return False
        result = dims_of(node.output(0))
        target = None if result is None else reshape_target(result, dims)
        if target is None:
            return False
        return replace_by(node, [node], [ops.Reshape(node.input_value(0), Constant(np.array(target, np.int64)))])


def permutation(node: Node) -> list[int] | None:
    """The axes of a Transpose in the order of its output; None if the rank is unknown."""
    dims = dims_of(node.input_value(0))
    if dims is None:
        return None
    perm: Sequence[int] | None = node.attributes.get("perm")
    return list(range(len(dims)))[::-1] if perm is None else [int(axis) for axis in perm]


def transposed(value: Output, perm: Sequence[int]) -> Output:
    """`value` transposed: `value` itself for the identity permutation, a constant if `value` is one.

    A constant for which the budget of the compilation has no room is transposed in each inference.
    """
    if list(perm) == sorted(perm):
        return value
    if isinstance(value.node, Constant):
        shape = [value.node.shape[axis] for axis in perm]
        with suppress(OverBudgetError):
            made = derived_constant([value.node], shape, lambda data: np.asarray(np.transpose(data, perm), order="C"))
            return made.output(0)
    return ops.Transpose(value, perm=tuple(perm)).output(0)
