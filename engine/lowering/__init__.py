"""Lowering for devices with one kernel per operator: supported operators, reasons for refusal, query answers.

A plugin keeps one `LoweringTable`, and in it one `Lowering` for each operator or family of operators. A lowering reads
the operator's spec, whose attributes are typed, complete and checked::

    LOWERINGS: LoweringTable[MyLowering[Any]] = LoweringTable()

    @LOWERINGS.lowers("Concat", spec=ConcatSpec)
    class ConcatLowering(MyLowering[ConcatSpec]):
        def check(self, spec: ConcatSpec) -> Refusal | None:
            return check_types(spec.node.input_values, {f32})

        def lower(self, spec: ConcatSpec, builder: MyBuilder) -> None: ...

`prepare(model, LOWERINGS, PASSES)` makes the graph that is lowered: a copy of the user's model, transformed by
the device's passes and folded, with a `Decisions` that says for each node how it is lowered, or why it is refused.
`query` maps the decisions for this graph back to the nodes of the user's model, which may have been fused. If shapes
are dynamic, `PreparedGraph.at(shapes)` is the graph for given input shapes, and a `PlanCache` keeps the most recent
plans. A `GraphNetwork` exports its graph; `engine.lowering.tuning` chooses among kernels by measurement.

A device that wraps a runtime asks it about one node at a time (`single_node_model`, `NodeAnswers`), and hands over what
it runs as ONNX (`hand_over`).
"""

from typing import TYPE_CHECKING

from engine.blob.compiled_for import check_mode, check_precision
from engine.lowering.checks import (
    SHAPE_SOURCES,
    check_constant,
    check_inference_dropout,
    check_min_rank,
    check_parts,
    check_stash_type,
    check_types,
    first_refusal,
    is_known_when_bound,
    is_omitted,
    require_elements,
)
from engine.lowering.decisions import Decisions
from engine.lowering.lengths import (
    InputLengths,
    LengthPattern,
    LengthVector,
    Relation,
    irregular_node,
    pattern_between,
    pattern_of_growth,
    pattern_of_sequences,
)
from engine.lowering.network import GraphNetwork, constants_of, read_graph, write_graph
from engine.lowering.plan_cache import PlanCache
from engine.lowering.prepare import PreparedGraph, prepare
from engine.lowering.query import answer_query, query
from engine.lowering.refusal import Refusal, RefusalCause
from engine.lowering.specialize import Shapes, fold, is_static, known_shapes, shapes_of, specialize
from engine.lowering.table import Decision, Lowering, LoweringTable
from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.lowering.attention import check_attention
    from engine.lowering.handed_model import NOT_IN_NUMPY, HandedModel, RuntimePorts, as_element_type, hand_over
    from engine.lowering.single_node import NodeAnswers, single_node_model
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.lowering.attention": ["check_attention"],
        "engine.lowering.handed_model": ["NOT_IN_NUMPY", "HandedModel", "RuntimePorts", "as_element_type", "hand_over"],
        "engine.lowering.single_node": ["NodeAnswers", "single_node_model"],
    })  # fmt: skip

__all__ = [
    "NOT_IN_NUMPY",
    "SHAPE_SOURCES",
    "Decision",
    "Decisions",
    "GraphNetwork",
    "HandedModel",
    "InputLengths",
    "LengthPattern",
    "LengthVector",
    "Lowering",
    "LoweringTable",
    "NodeAnswers",
    "PlanCache",
    "PreparedGraph",
    "Refusal",
    "RefusalCause",
    "Relation",
    "RuntimePorts",
    "Shapes",
    "answer_query",
    "as_element_type",
    "check_attention",
    "check_constant",
    "check_inference_dropout",
    "check_min_rank",
    "check_mode",
    "check_parts",
    "check_precision",
    "check_stash_type",
    "check_types",
    "constants_of",
    "first_refusal",
    "fold",
    "hand_over",
    "irregular_node",
    "is_known_when_bound",
    "is_omitted",
    "is_static",
    "known_shapes",
    "pattern_between",
    "pattern_of_growth",
    "pattern_of_sequences",
    "prepare",
    "query",
    "read_graph",
    "require_elements",
    "shapes_of",
    "single_node_model",
    "specialize",
    "write_graph",
]
