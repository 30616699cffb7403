"""`DivideToMultiply`: division as multiplication by a power."""

from __future__ import annotations

from engine import ops
from engine.ir import Constant
from engine.passes.folding import constant_fold
from engine.passes.pattern import Matcher, any_input, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node


class DivideToMultiply(MatcherPass):
    """Decomposes `Div(a, b)` of real numbers into `Mul(a, Pow(b, -1))`; integer division stays.

    Rounds twice, whereas the division rounds once, so it is disabled by default in the common optimizations.
    """

    makes = frozenset({"Mul"})

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        divide = wrap_type("Div", [any_input(), any_input()])
        self.register_matcher(Matcher(divide, "DivideToMultiply"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        element_type = node.input_value(1).element_type
        if not element_type.is_real or self.transformation_callback(node):
            return False
        power = ops.Pow(node.input_value(1), Constant(-1.0, element_type))
        folded = constant_fold(power)
        inverse = power.output(0) if folded is None else folded[0]
        product = ops.Mul(node.input_value(0), inverse)
        product.friendly_name = node.friendly_name
        copy_runtime_info(node, [inverse.node, product])
        replace_node(node, product)
        return True
