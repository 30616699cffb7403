"""`ReshapeMerge`: consecutive reshapes become one."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant
from engine.passes.fusion import dims_of, operation, replace_by, reshape_target
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_SHAPE_ONLY = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


class ReshapeMerge(MatcherPass):
    """Makes a Reshape, Squeeze, Unsqueeze or Flatten of another one read the input of the inner one directly.

    The outer one becomes a Reshape to a constant shape: each unknown length must equal that of the same dimension of
    the input, or there is a single one and all others are numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type(_SHAPE_ONLY), "ReshapeMerge"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        inner = operation(node.input_value(0), *_SHAPE_ONLY)
        if inner is None or inner.output(0).num_consumers != 1 or self.transformation_callback(node):
            return False
        dims, source = dims_of(node.output(0)), dims_of(inner.input_value(0))
        target = None if dims is None or source is None else reshape_target(dims, source)
        if target is None:
            return False
        merged = ops.Reshape(inner.input_value(0), Constant(np.array(target, np.int64)))
        return replace_by(node, [inner, node], [merged])
