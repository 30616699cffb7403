"""Devices that have a kernel for each operator: which operators those are, why a node has none, what a query says.

A plugin keeps one `LoweringTable`, and in it one `Lowering` for each operator or family of operators. A lowering reads
the operator's spec, whose attributes are typed, complete and checked::

    LOWERINGS: LoweringTable[MyLowering[Any]] = LoweringTable()

    @LOWERINGS.lowers("Concat", spec=ConcatSpec)
    class ConcatLowering(MyLowering[ConcatSpec]):
        def check(self, spec: ConcatSpec) -> Refusal | None:
            return check_types(spec.node.input_values, {f32})

        def lower(self, spec: ConcatSpec, builder: MyBuilder) -> None: ...

`Decisions(LOWERINGS)` then answers for each node of a graph how it is lowered, or why it is not; query and compilation
read it, and `answer_query` makes it an answer about the user's model, whose operations may have been fused.
"""

from engine.lowering.checks import (
    SHAPE_SOURCES,
    check_constant,
    check_types,
    first_refusal,
    is_known_when_bound,
    is_left_out,
)
from engine.lowering.decisions import Decisions
from engine.lowering.query import answer_query
from engine.lowering.refusal import Refusal, RefusalCause
from engine.lowering.table import Decision, Lowering, LoweringTable

__all__ = [
    "SHAPE_SOURCES",
    "Decision",
    "Decisions",
    "Lowering",
    "LoweringTable",
    "Refusal",
    "RefusalCause",
    "answer_query",
    "check_constant",
    "check_types",
    "first_refusal",
    "is_known_when_bound",
    "is_left_out",
]
