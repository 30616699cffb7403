"""Traversal of a model including the bodies of its control flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.ir.model import Model
from engine.ir.node import Node

CANNOT_RUN: Final = "cannot_run"
"""The rt_info key of a body that cannot run, with the reason: the condition of an If is known to decide against it, the
types of the values that it reads do not fit, or a Loop of no iterations has it. Its own types then mean nothing, so
passes leave it as it is.
"""


def all_nodes(model: Model) -> Iterator[Node]:
    """Every node of `model` in topological order; the nodes of a body come before the node with the body."""
    for node in model.ordered_nodes():
        if node.attributes:
            for body in node.bodies.values():
                yield from all_nodes(body)
        yield node


def runnable_bodies(node: Node) -> Iterator[Model]:
    """The bodies of `node`, without those that cannot run; type inference decides which these are."""
    if node.attributes:
        for body in node.bodies.values():
            if CANNOT_RUN not in body.rt_info:
                yield body
