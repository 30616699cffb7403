"""`FusedMatMul`: matrix product, bias, residual and activation in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ir import Node, Output, OutputLike, PartialShape, TensorType, ValueType
from engine.ops.create import create
from engine.ops.fused_activation import Activation
from engine.ops.internal.definition import define, padded
from engine.ops.internal.fused_conv import finish, finished_type
from engine.ops.matmul import MatMulSpec, product_type
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import broadcast_shapes, fail, tensor_type


def FusedMatMul(  # noqa: N802 - constructors of operators are called as the operators are
    a: OutputLike,
    b: OutputLike,
    bias: OutputLike | None = None,
    residual: OutputLike | None = None,
    *,
    activation: Activation | None = None,
    trans_b: bool = False,
) -> Node:
    """`activation(MatMul(a, b) + bias + residual)`; all parts except the product are optional.

    Args:
        a: [..., M, K].
        b: [..., K, N], or [..., N, K] with `trans_b`; dimensions before these broadcast as in MatMul.
        bias: [N].
        residual: a tensor of the output's shape, added before the activation.
        activation: applied last.
        trans_b: whether the matrices of `b` are transposed first.
    """
    own: dict[str, Any] = {"trans_b": int(trans_b)}
    if activation is not None:
        own["activation"] = activation.name
        own["activation_parameters"] = activation.parameters or None
    return create("FusedMatMul", [a, b, bias, residual], own, domain=INTERNAL_DOMAIN)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    a, b, bias, residual = padded(inputs, 4)
    assert b is not None
    spec = MatMulSpec.of(node)
    _check_ranks(spec)
    if spec.trans_b:
        rank = len(b.shape)
        b = create("Transpose", [b], {"perm": (*range(rank - 2), rank - 1, rank - 2)}).output(0)
    value = create("MatMul", [a, b]).output(0)
    if bias is not None:
        value = create("Add", [value, bias]).output(0)
    return [finish(node, value, residual, spec.activation)]


def _infer(node: Node) -> Sequence[ValueType]:
    spec = MatMulSpec.of(node)
    _check_ranks(spec)
    a, b, bias = tensor_type(node, 0), tensor_type(node, 1), spec.input(2)
    if spec.trans_b:
        dims = b.shape.dims
        b = TensorType(b.element_type, PartialShape((*dims[:-2], dims[-1], dims[-2])))
    value = product_type(node, a, b)
    if bias is not None:
        value = TensorType(value.element_type, broadcast_shapes(node, (value.shape, bias.shape)))
    return (finished_type(node, value, spec.input(3)),)


def _check_ranks(spec: MatMulSpec) -> None:
    node, b, bias = spec.node, spec.node.input_value(1), spec.input(2)
    if spec.trans_b and (b.shape.rank.is_dynamic or len(b.shape) < 2):
        fail(node, f"with trans_b=1 input 1 (B) must have at least two dimensions, got {b.type}")
    if bias is not None and bias.shape.rank != 1:
        fail(node, f"input 2 (bias) must have one dimension, got {bias.type}")
    if bias is not None and b.shape.rank == 1:
        fail(node, f"with a bias, input 1 (B) must have columns, got {b.type}")


define(
    "FusedMatMul",
    [("A", False), ("B", False), ("bias", True), ("residual", True)],
    {"trans_b": 0, "activation": "", "activation_parameters": ()},
    _decompose,
    "activation(MatMul(A, B) + bias + residual); the matrices of B are transposed first if `trans_b` is 1.",
    rule=_infer,
)
