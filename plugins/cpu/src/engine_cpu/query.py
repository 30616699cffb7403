"""What the device answers to a query: how each operation of the user's model would run."""

from __future__ import annotations

from engine.errors import UnsupportedError
from engine.ir import Model, Node
from engine.lowering import Refusal, answer_query
from engine.ops.reference import compile_node
from engine.plugin_api import QueryResult, Support
from engine_cpu.lowering import decisions


def query(model: Model, graph: Model, *, allow_reference: bool) -> QueryResult:
    """Answer for the operations of `model`, of which `graph` is the transformed copy."""
    made, alone = decisions(), decisions()
    reasons = dict(made.refusals(graph))
    return answer_query(
        model,
        graph,
        support=lambda node: _support(node, reasons.get(node), allow_reference),
        alone=lambda node: _support(node, alone.refusal(node), allow_reference),
    )


def _support(node: Node, why: Refusal | None, allow_reference: bool) -> Support:
    if why is None:
        return Support.native()
    if not allow_reference:
        return Support.refused(why.cause, f"{why.reason}; ALLOW_REFERENCE is off")
    try:
        compile_node(node)
    except UnsupportedError as e:
        return Support.refused(why.cause, f"{why.reason}; and {e}")
    return Support.reference(why.cause, why.reason)
