"""What the device answers to a query."""

from __future__ import annotations

from engine.ir import Model
from engine.lowering import Refusal, answer_query
from engine.plugin_api import QueryResult, Support
from engine_opencl.lowering import decisions


def query(model: Model, graph: Model) -> QueryResult:
    """Answer for the operations of `model`, of which `graph` is the transformed copy."""
    reasons, alone = dict(decisions().refusals(graph)), decisions()
    return answer_query(
        model, graph, support=lambda node: _support(reasons.get(node)), alone=lambda node: _support(alone.refusal(node))
    )


def _support(why: Refusal | None) -> Support:
    return Support.native() if why is None else Support.refused(why.cause, why.reason)
