"""Traversal of a model including the bodies of its control flow."""

from __future__ import annotations

from collections.abc import Iterator

from engine.ir.model import Model
from engine.ir.node import Node


def all_nodes(model: Model) -> Iterator[Node]:
    """Every node of `model` in topological order; the nodes of a body come before the node with the body."""
    for node in model.ordered_nodes():
        if node.attributes:
            for body in node.bodies.values():
                yield from all_nodes(body)
        yield node
