"""Answers to queries on the graph of the model that was asked about."""

from __future__ import annotations

from typing import Final

from engine.drawing.graph import Graph
from engine.placement.graph import ON_HOST, Mark, marked_graph, placed_graph
from engine.placement.support import QueryResult, SupportLevel

_WHERE: Final = {
    SupportLevel.NATIVE: "{}",
    SupportLevel.REFERENCE: f"{{}}, {ON_HOST}",
    SupportLevel.REFUSED: "refused by {}",
}


def answered_graph(graph: Graph, answer: QueryResult, device: str) -> Graph:
    """`graph`, of the queried model, with where and how each operation runs, and in which subgraph, if there are any.

    `device` is the one that answered.
    """
    if answer.placement is not None:
        return placed_graph(graph, answer.placement)
    marks = {}
    for name, support in answer.nodes.items():
        why = {"precision": support.precision, "precision because": support.precision_reason}
        if support.level is not SupportLevel.NATIVE:
            why["not native"] = f"{support.cause}: {support.reason}" if support.cause else support.reason
        where = _WHERE[support.level].format(device)
        marks[name] = Mark(where, details={key: text for key, text in why.items() if text})
    return marked_graph(graph, marks)
