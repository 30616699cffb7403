"""`ExpandElimination`: operators that broadcast read the input of an Expand directly."""

from __future__ import annotations

from engine.ir import Node, Output, TensorType
from engine.ops.rules import broadcast_shapes
from engine.ops.traits import imported_operators_with
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_runtime_info


class ExpandElimination(MatcherPass):
    """Connects elementwise operators that read an Expand to its input, if the other operands give the same shape.

    An Expand that determines the operator's shape, or that other nodes read, stays.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(imported_operators_with(lambda traits: traits.broadcasts))
        self.register_matcher(Matcher(root, "ExpandElimination"), self._bypass)

    def _bypass(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        found = False
        for value in dict.fromkeys(node.input_values):
            if value is None or value.node.op_type != "Expand" or value.node.domain or not _keeps_shape(node, value):
                continue
            copy_runtime_info([node, value.node], node)
            source = value.node.input_value(0)
            for port in node.inputs:
                if port.source_output == value:
                    port.replace_source_output(source)
            found = True
        return found


def _keeps_shape(node: Node, expanded: Output) -> bool:
    """True if `node` broadcasts to its known shape even if it reads the input of `expanded`'s node."""
    mine, source = node.output(0).type, expanded.node.input_value(0)
    shapes = [(source if value == expanded else value).shape for value in node.input_values if value is not None]
    if not isinstance(mine, TensorType) or any(shape.rank.is_dynamic for shape in (mine.shape, *shapes)):
        return False
    joint = broadcast_shapes(node, shapes)
    return len(joint) == len(mine.shape) and all(
        a == b and (a.is_static or a.symbol is not None) for a, b in zip(joint.dims, mine.shape.dims, strict=True)
    )
