"""The Einsum nodes that are not decomposed, because their direct kernel is faster."""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Node, f32
from engine.ops.einsum import EinsumSpec
from engine_cpu.lowering import decisions

_BETWEEN: Final = frozenset({"Mul", "Div", "Add"})
"""The operators between the scores of an attention and their Softmax."""
_MAX_BETWEEN: Final = 3


def stays_whole(einsum: Node) -> bool:
    """Whether to keep an Einsum instead of decomposing it.

    False if it has no kernel, if it is part of an attention, which is faster when fused, or if it is a product with
    weights, which needs no data movement and can fuse a bias and an activation. For types other than f32, the operators
    of the decomposition have no kernel.
    """
    if einsum.output(0).element_type is not f32:
        return True
    return decisions().refusal(einsum) is None and not _is_in_attention(einsum) and not _is_linear(einsum)


def _is_in_attention(einsum: Node) -> bool:
    if any(value is not None and value.node.op_type == "Softmax" for value in einsum.input_values):
        return True
    value = einsum.output(0)
    for _ in range(_MAX_BETWEEN + 1):
        if value.num_consumers != 1:
            return False
        node = value.target_inputs[0].node
        if node.op_type == "Softmax":
            return True
        if node.op_type not in _BETWEEN:
            return False
        value = node.output(0)
    return False


def _is_linear(einsum: Node) -> bool:
    """Whether it is a product of the last axes of an operand with a constant, whose other axes come last."""
    values = [value for value in einsum.input_values if value is not None]
    constant = [isinstance(value.node, Constant) for value in values]
    if sorted(constant) != [False, True]:
        return False
    equation = EinsumSpec.of(einsum).labels
    if equation is None:
        return False
    data, weights = (equation.terms[constant.index(is_constant)] for is_constant in (False, True))
    rows = [label for label in data if label not in weights]
    summed, columns = data[len(rows) :], {*weights} - {*data}
    is_kept = any(label in equation.result for label in summed)
    result = equation.result[len(rows) :]
    return (
        list(data[: len(rows)]) == rows == list(equation.result[: len(rows)]) and not is_kept and {*result} == columns
    )
