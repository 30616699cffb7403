"""Evaluating operations whose inputs are all constants, when the model is built rather than when it runs."""

from __future__ import annotations

from engine.errors import EngineError
from engine.ir import Constant, Node, Output, Parameter, Result, TensorType
from engine.ops import find_op
from engine.ops.reference import evaluate

PROTECTED = frozenset({"DequantizeLinear"})
"""Operators that the pass leaves alone: folding the weights' DequantizeLinear destroys the integer path."""


def is_foldable(node: Node) -> bool:
    """True where `node` is an operation of ONNX whose inputs are all constants and whose result is always the same."""
    if isinstance(node, (Parameter, Constant, Result)) or node.op_type in PROTECTED or node.bodies:
        return False
    sources = [s for s in node._sources if s is not None]
    if not sources or not all(isinstance(s.node, Constant) for s in sources):
        return False
    op = find_op(node.op_type, node.domain)
    return op is not None and op.is_deterministic and all(type(t) is TensorType for t in node._types)


def constant_fold(node: Node, max_bytes: int | None = None) -> list[Output] | None:
    """The outputs of `node` as constants; None where it cannot be folded.

    The graph is not changed: `replace_node(node, folded)` does that. The constants take the node's friendly name.
    `max_bytes` bounds the size of the outputs: a larger result stays unfolded.
    """
    if node.op_type in PROTECTED or not is_foldable(node):
        return None
    if max_bytes is not None and _known_bytes(node) > max_bytes:
        return None
    try:
        values = evaluate(node, [s.node.data if s is not None else None for s in node._sources])  # type: ignore[attr-defined]
    except EngineError:
        return None  # what fails on constants fails when it runs, with the node's name
    if max_bytes is not None and sum(getattr(value, "nbytes", 0) for value in values) > max_bytes:
        return None
    folded: list[Output] = []
    for index, (value, value_type) in enumerate(zip(values, node._types, strict=True)):
        name = node.friendly_name if len(values) == 1 else f"{node.friendly_name}.{index}"
        assert isinstance(value_type, TensorType)
        constant = Constant(value, friendly_name=name)
        folded.append(constant.output(0))
    return folded


def _known_bytes(node: Node) -> int:
    total = 0
    for value_type in node._types:
        if isinstance(value_type, TensorType) and value_type.shape.is_static:
            total += value_type.element_type.byte_size(value_type.shape.size())
    return total
