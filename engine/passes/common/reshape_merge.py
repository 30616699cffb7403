"""`ReshapeMerge`, which joins consecutive reshapes to one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, Node
from engine.ops.traits import Moves, imported_operators_with
from engine.passes.fusion import dims_of, operation, replace_by, reshape_target
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_SHAPE_ONLY: Final = imported_operators_with(lambda traits: traits.moves is Moves.VIEW and not traits.pointwise)


class ReshapeMerge(MatcherPass):
    """Makes a Reshape, Squeeze, Unsqueeze or Flatten of another one read the input of the inner one directly.

    The outer one becomes a Reshape to a constant shape: each unknown length must equal the length of the same dimension
    of the input, or there is a single one and all others are numbers. Inputs that either of the two would refuse when
    it runs are still refused.
    """

    makes = frozenset({"Reshape"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type(_SHAPE_ONLY), "ReshapeMerge"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        inner = operation(node.input_value(0), *_SHAPE_ONLY)
        if inner is None or inner.output(0).num_consumers != 1 or self.transformation_callback(node):
            return False
        if _copies(node) and inner.op_type == "Reshape" and not isinstance(inner.input_value(1).node, Constant):
            return False  # the lengths that are copied are those that the inner one computes
        dims, source = dims_of(node.output(0)), dims_of(inner.input_value(0))
        between = dims_of(inner.output(0))
        if dims is None or source is None or between is None:
            return False
        target = reshape_target(dims, source)
        if target is None or (-1 in target and not _keeps_checks(inner, node, target, source, between)):
            return False
        merged = ops.Reshape(inner.input_value(0), Constant(np.array(target, np.int64)))
        return replace_by(node, [inner, node], [merged])


def _copies(node: Node) -> bool:
    """Whether a Reshape copies a length of its input."""
    if node.op_type != "Reshape":
        return False
    target = node.input_value(1).node
    return not isinstance(target, Constant) or bool((target.data == 0).any())


def _keeps_checks(
    inner: Node, outer: Node, target: Sequence[int], source: Sequence[Dimension], between: Sequence[Dimension]
) -> bool:
    """Whether a Reshape that computes a length from the number of elements refuses the same inputs as the two.

    It checks that the lengths of `target` that are numbers divide the number of elements, as the lengths of `source`
    do.
    """
    if any(node.op_type == "Squeeze" and _squeezes_unknown(node) for node in (inner, outer)):
        return False
    checked = math.lcm(math.prod(length for length in target if length > 0), _known_factor(source))
    return checked % _known_factor(between) == 0


def _squeezes_unknown(node: Node) -> bool:
    """Whether a Squeeze removes a dimension whose length of 1 only the inference shows."""
    before, after = dims_of(node.input_value(0)), dims_of(node.output(0))
    if before is None or after is None:
        return True
    return sum(not dim.is_static for dim in before) > sum(not dim.is_static for dim in after)


def _known_factor(dims: Sequence[Dimension]) -> int:
    """The product of the lengths that are known and not 0."""
    return math.prod(dim.get_length() for dim in dims if dim.is_static and dim.get_length() != 0)
