"""Which extension defines an operator. Most processes have none, and do without `engine.ops.extension`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.ir import Node
from engine.ops.registry import find_op

if TYPE_CHECKING:
    from engine.ops.extension import Operator


def extension_of(node: Node) -> str:
    """The name and version of the extension that defines the operator of `node`; "" if none does."""
    op = find_op(node.op_type, node.domain) if node.domain else None
    return "" if op is None else op.extension


def operator_of(node: Node) -> Operator | None:
    """The definition of the operator of `node`, if it is of an extension."""
    op = find_op(node.op_type, node.domain) if node.domain else None
    return None if op is None else op.definition
