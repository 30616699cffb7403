"""`MaskSimplification`: removes masks that have no effect."""

from __future__ import annotations

from collections.abc import Callable

from engine.ir import Node
from engine.passes.fusion import constant_data, dims_of, fits, same_lengths
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.surgery import replace_output_update_name


class MaskSimplification(MatcherPass):
    """Removes Where, And and Or whose constant operand has no effect, and zeros added before a Softmax.

    `Where(all true, a, b)` is a, `And(all true, x)` and `Or(all false, x)` are x. Zeros are removed only if all
    consumers of the sum are Softmax operators: adding 0 turns -0.0 into 0.0, which has the same exponential.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(sorted(_RULES))
        self.register_matcher(Matcher(root, "MaskSimplification"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        index = _RULES[node.op_type](node)
        if index is None or self.transformation_callback(node):
            return False
        source = node.input_value(index)
        mine, own = dims_of(node.output(0)), dims_of(source)
        if mine is None or own is None or not same_lengths(mine, own) or not fits(node.output(0), source):
            return False
        return replace_output_update_name(node.output(0), source)


def _where(node: Node) -> int | None:
    condition = constant_data(node.input_value(0))
    if condition is None or not condition.size:
        return None
    return 1 if condition.all() else None if condition.any() else 2


def _neutral(value: bool) -> Callable[[Node], int | None]:
    def rule(node: Node) -> int | None:
        for index in (0, 1):
            data = constant_data(node.input_value(index))
            if data is not None and data.size and (data == value).all():
                return 1 - index
        return None

    return rule


def _add(node: Node) -> int | None:
    readers = node.output(0).target_inputs
    if not readers or any(target.node.op_type != "Softmax" or target.node.domain for target in readers):
        return None
    return _neutral(False)(node)


_RULES: dict[str, Callable[[Node], int | None]] = {
    "Where": _where,
    "And": _neutral(True),
    "Or": _neutral(False),
    "Add": _add,
}
