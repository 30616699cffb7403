"""Branches of an If that are never taken: a model may be right although one of them does not fit the types."""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Node, Output

_SHAPE_SOURCES: Final = frozenset({"Shape", "Size"})


def is_decided_by_types(condition: Output | None) -> bool:
    """Whether constants and the shapes of values alone decide a condition, before any inference.

    PyTorch's exporters write such an If for operators that work differently on some shapes, `squeeze` for example.
    """
    seen: set[Node] = set()
    stack = [] if condition is None else [condition.node]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Constant) or (node.op_type in _SHAPE_SOURCES and not node.domain):
            continue
        if node.has_bodies or not node.num_inputs:
            return False
        seen.add(node)
        stack.extend(source.node for source in node.sources if source is not None)
    return condition is not None
