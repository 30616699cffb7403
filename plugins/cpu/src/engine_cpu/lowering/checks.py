"""A question that the checks of many lowerings ask of a node."""

from __future__ import annotations

from engine.ir import Node
from engine.ir.element_type import f32
from engine.lowering import Refusal, check_types

F32 = frozenset({f32})


def check_f32(node: Node) -> Refusal | None:
    """A refusal unless all inputs and outputs are f32 tensors of known rank."""
    return check_types((*node.input_values, *node.outputs), F32)
