"""Results that are made of elements that are not there: an error, where memory would be given out that nobody wrote."""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import InputError
from engine.ir import Node
from engine_opencl.plan import PlanBuilder


def require_elements(node: Node, b: PlanBuilder, lengths: Iterable[int], wanted: str) -> None:
    """Raise `InputError` where the result has elements and one of the `lengths` that they are taken from is 0."""
    if 0 in lengths and 0 not in b.shape(node.output(0)):
        given, made = (list(b.shape(value)) for value in (node.input_value(0), node.output(0)))
        raise InputError(
            f"{node.op_type} `{node.friendly_name}`: {wanted} needs elements, of which an input {given} leaves none; "
            f"the result is to be {made}"
        )
