"""Names of steps in errors of an inference: the model's node, and the input that has the wrong index."""

from __future__ import annotations

from typing import Final

from engine.ir import Node
from engine.ops import get_op
from engine.ops.traits import traits_of_operator
from engine.passes.runtime_info import DECOMPOSED

_LENGTHS: Final = " (lengths)"
"""As in `csrc/executor/context.cpp`: the step reads a table with a row for each length."""


def step_name(node: Node) -> str:
    """The name of a step that computes `node`, or a part of it."""
    origin = node.annotations.get(DECOMPOSED)
    op_type, name = node.op_type, node.friendly_name
    if isinstance(origin, (list, tuple)) and len(origin) == 2 and all(isinstance(each, str) for each in origin):
        op_type, name = origin
    index = traits_of_operator(op_type).addresses
    if index is None:
        return node.friendly_name
    lengths = _LENGTHS if op_type == "ReverseSequence" and node.op_type == "Gather" else ""
    return f"{op_type} `{name}`, input `{get_op(op_type).input_name(index)}`{lengths}"
