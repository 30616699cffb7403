"""The amount of computation and data movement of a node, from its types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from engine.ir import ElementType, Node, Output, TensorType
from engine.ops.attention import AttentionSpec
from engine.ops.einsum import EinsumSpec
from engine.ops.matmul import GemmSpec
from engine.ops.scan import ScanSpec
from engine.passes.runtime_info import is_operation

ASSUMED_TRIPS: Final = 8
"""The assumed number of iterations of a Loop, and of a Scan over unknown lengths."""

_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"})
_PICKING: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
_RECURRENT: Final = ("LSTM", "GRU", "RNN")


class Work(NamedTuple):
    """The arithmetic operations of a node, and the bytes that it reads and writes."""

    operations: float
    bytes: float


def work_of(node: Node) -> Work:
    """The work of a node; exact if all lengths are known; unknown lengths count as 1.

    Matrix products, convolutions, attention and recurrent layers count their multiplications and additions; other
    operators, one operation per element of the results. Bodies count once per iteration.
    """
    if node.op_type in _VIEWS and not node.domain:
        return Work(0.0, 0.0)
    values = [value for value in (*node.input_values, *node.outputs) if value is not None]
    if node.op_type in _PICKING and not node.domain:
        values[0] = node.output(0)  # a lookup reads as many bytes of its table as it writes
    moved = float(sum(byte_size(value) for value in values))
    count = _OPERATIONS.get(node.op_type)
    operations = float(sum(_size(output) for output in node.outputs)) if count is None else count(node)
    for body in node.bodies.values():
        inner = [work_of(each) for each in body.ordered_nodes() if is_operation(each)]
        trips = _trips(node)
        operations += trips * sum(each.operations for each in inner)
        moved += trips * sum(each.bytes for each in inner)
    return Work(operations, moved)


def byte_size(value: Output, unknown: int = 1) -> int:
    """The bytes of a value; unknown lengths count as `unknown`; 0 for a value that is not a tensor."""
    if not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return 0
    count = 1
    for dimension in value.shape:
        count *= dimension.get_length() if dimension.is_static else unknown
    return bytes_of(value.element_type, count)


def bytes_of(element_type: ElementType, count: int) -> int:
    """The bytes of `count` elements."""
    return count * element_type.numpy.itemsize


def _trips(node: Node) -> int:
    if node.op_type == "If":
        return 1
    if node.op_type == "Scan":
        spec = ScanSpec.of(node)
        shape, axis = _lengths(node.input_values[spec.num_states]), spec.scan_input_axes[0]
        if -len(shape) <= axis < len(shape):
            return shape[axis] if shape[axis] > 1 else ASSUMED_TRIPS
    return ASSUMED_TRIPS


def _lengths(value: Output | None) -> tuple[int, ...]:
    """The lengths of a tensor, 1 for unknown ones; empty for other types and for unknown rank."""
    if value is None or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return ()
    return tuple(dim.get_length() if dim.is_static else 1 for dim in value.shape)


def _size(value: Output | None) -> int:
    return math.prod(_lengths(value))


def _product(node: Node) -> float:
    """Every element of the result is a sum over the last axis of the first factor."""
    shape = _lengths(node.input_value(0))
    return 2.0 * _size(node.output(0)) * (shape[-1] if shape else 1)


def _gemm(node: Node) -> float:
    shape = _lengths(node.input_value(0))
    if len(shape) != 2:
        return float(_size(node.output(0)))
    return 2.0 * _size(node.output(0)) * shape[0 if GemmSpec.of(node).transA else 1]


def _conv(node: Node, weights: int = 1) -> float:
    """[M, C / group, ...]: every element of the result is a sum over the weights of its channel."""
    shape = _lengths(node.input_value(weights))
    return 2.0 * _size(node.output(0)) * math.prod(shape[1:])


def _conv_transpose(node: Node) -> float:
    """[C, M / group, ...]: every element of the input is multiplied with the weights of its channel."""
    return 2.0 * _size(node.input_value(0)) * math.prod(_lengths(node.input_value(1))[1:])


def _attention(node: Node) -> float:
    """Q K^T and P V, including past keys: B * H * S * T products of size D, and as many of size E."""
    query, key, value = (_lengths(node.input_value(index)) for index in range(3))
    past = _lengths(node.input_values[4]) if node.has_input(4) else ()
    length = (key[-2] if len(key) > 1 else 1) + (past[-2] if len(past) == 4 else 0)
    if len(query) == 3:
        spec = AttentionSpec.of(node)
        heads, kv_heads = spec.q_num_heads or 1, spec.kv_num_heads or 1
        rows, sizes = query[0] * query[1], query[2] + value[2] // kv_heads * heads
    elif len(query) == 4:
        rows, sizes = query[0] * query[1] * query[2], query[3] + value[3]
    else:
        return float(_size(node.output(0)))
    return float(2 * rows * length * sizes)


def _recurrent(node: Node) -> float:
    """X: [S, B, I], W: [directions, gates * H, I], R: [directions, gates * H, H]."""
    steps = math.prod(_lengths(node.input_value(0))[:2])
    return 2.0 * steps * (_size(node.input_value(1)) + _size(node.input_value(2)))


def _einsum(node: Node) -> float:
    """One multiplication and addition for each combination of the subscripts."""
    labels = EinsumSpec.of(node).labels
    sizes: dict[str, int] = {}
    for term, value in zip(labels.terms if labels else (), node.input_values, strict=False):
        for label, length in zip(term, _lengths(value), strict=False):
            sizes[label] = max(length, sizes.get(label, 1))
    return 2.0 * max(math.prod(sizes.values()), _size(node.output(0)))


_OPERATIONS: Final[dict[str, Callable[[Node], float]]] = {
    "MatMul": _product,
    "MatMulInteger": _product,
    "QLinearMatMul": _product,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvInteger": _conv,
    "DeformConv": _conv,
    "QLinearConv": lambda node: _conv(node, 3),
    "ConvTranspose": _conv_transpose,
    "Attention": _attention,
    "Einsum": _einsum,
    **dict.fromkeys(_RECURRENT, _recurrent),
}
