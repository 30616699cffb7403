"""`SplitConcatElimination`: a Concat of all parts of a Split reads the unsplit value."""

from __future__ import annotations

from collections.abc import Sequence

from engine import ops
from engine.ir import Output
from engine.ops.slice import ConcatSpec, SplitSpec
from engine.passes import MatcherPass
from engine.passes.fusion import replace_by
from engine.passes.pattern import Matcher, wrap_type


class SplitConcatElimination(MatcherPass):
    """Turns Concat(..., a, b, ...) of all parts a, b of a Split of x along the same axis into Concat(..., x, ...).

    `x` can then be written directly into the output of the Concat, and the parts are views of it.
    """

    def __init__(self) -> None:
        super().__init__()

        def callback(m: Matcher) -> bool:
            node = m.match_root
            values = [value for value in node.input_values if value is not None]
            axis = ConcatSpec.of(node).axis
            joined = _joined(values, axis)
            if self.transformation_callback(node) or len(joined) == len(values):
                return False
            made = ops.Concat(*joined, axis=axis)
            return replace_by(node, [node], [made])

        self.register_matcher(Matcher(wrap_type("Concat"), "SplitConcatElimination"), callback)


def _joined(values: Sequence[Output], axis: int) -> list[Output]:
    """The values, with all consecutive parts of a Split replaced by its source."""
    joined: list[Output] = []
    index = 0
    while index < len(values):
        parts = values[index].node.outputs
        if _is_split(values[index], axis) and list(values[index : index + len(parts)]) == list(parts):
            joined.append(values[index].node.input_value(0))
            index += len(parts)
        else:
            joined.append(values[index])
            index += 1
    return joined


def _is_split(value: Output, axis: int) -> bool:
    node = value.node
    if node.op_type != "Split" or node.domain:
        return False
    return axis >= 0 and SplitSpec.of(node).axis == axis
