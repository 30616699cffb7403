"""Devices that have a kernel for each operator: which operators those are, why a node has none, what a query says.

A plugin keeps one `LoweringTable`, and in it one `Lowering` for each operator or family of operators::

    LOWERINGS: LoweringTable[MyLowering] = LoweringTable()

    @LOWERINGS.lowers("Relu", "Sigmoid")
    class ActivationLowering(MyLowering):
        def check(self, node: Node) -> Refusal | None:
            return check_types(node.input_values, {f32})

`LOWERINGS.refusal(node)` is then all that a query needs: `refusals` asks it of a graph that passes have transformed,
and `answer_query` makes that an answer about the user's model, whose operations may have been fused.
"""

from engine.lowering.checks import (
    SHAPE_SOURCES,
    check_constant,
    check_types,
    first_refusal,
    is_known_when_bound,
    is_left_out,
)
from engine.lowering.query import answer_query, refusals
from engine.lowering.refusal import Refusal
from engine.lowering.table import Lowering, LoweringTable

__all__ = [
    "SHAPE_SOURCES",
    "Lowering",
    "LoweringTable",
    "Refusal",
    "answer_query",
    "check_constant",
    "check_types",
    "first_refusal",
    "is_known_when_bound",
    "is_left_out",
    "refusals",
]
