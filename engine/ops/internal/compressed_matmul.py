"""`CompressedMatMul`: a product with a matrix of integers, each block of which has a scale, and its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.ir import Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.fused_activation import Activation, fused_activation
from engine.ops.internal.definition import define, padded
from engine.ops.internal.fused_conv import finish
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies
from engine.startup import dataclass

INTEGERS: Final = [f"tensor({name})" for name in ("int2", "uint2", "int4", "uint4", "int8", "uint8")]
_SCALES: Final = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]


def CompressedMatMul(  # noqa: N802 - constructors of operators are called as the operators are
    x: OutputLike,
    weights: OutputLike,
    scale: OutputLike,
    zero_point: OutputLike | None = None,
    bias: OutputLike | None = None,
    residual: OutputLike | None = None,
    *,
    block_size: int,
    accuracy_level: int = 0,
    activation: Activation | None = None,
) -> Node:
    """`activation(MatMul(x, (weights - zero_point) * scale) + bias + residual)`; `block_size` rows share a scale.

    Args:
        x: [..., K].
        weights: [K, N], integers of 2, 4 or 8 bits.
        scale: [ceil(K / block_size), N], f32, f16 or bf16, converted to the type of x; the last block may be shorter.
        zero_point: of the weights' type and the scale's shape; 0 if omitted.
        bias: [N].
        residual: a tensor of the output's shape, added before the activation.
        block_size: 1 or more; K for one scale per column.
        accuracy_level: the least precise type to which a device may round x: 0 or 1 for f32, 2 for f16, 3 for bf16, 4
            for i8 with a scale per block. The definition does not round x.
        activation: applied last.
    """
    inputs = [x, weights, scale, zero_point, bias, residual]
    own: dict[str, Any] = {"block_size": block_size, "accuracy_level": accuracy_level}
    if activation is not None:
        own["activation"] = activation.name
        own["activation_parameters"] = activation.parameters or None
    return create("CompressedMatMul", inputs, own, domain=INTERNAL_DOMAIN)


@specifies("CompressedMatMul", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedMatMulSpec(OperatorSpec):
    """The operands and attributes of `CompressedMatMul`, which documents them."""

    accuracy_level: int
    block_size: int
    activation: Activation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["block_size"] < 1:
            refuse(node, "block_size", given["block_size"], "1 or more")
        if not 0 <= given["accuracy_level"] <= 4:
            refuse(node, "accuracy_level", given["accuracy_level"], "0..4")
        for index, rank in ((1, 2), (2, 2), (3, 2), (4, 1)):
            check_rank(node, index, rank)
        given["activation"] = fused_activation(node)

    @property
    def x(self) -> Output:
        """The left operand, [..., K]."""
        return self.node.input_value(0)

    @property
    def weights(self) -> Output:
        """The quantized weights, [K, N]."""
        return self.node.input_value(1)

    @property
    def scale(self) -> Output:
        """The scales, [blocks, N]: one for each block of `block_size` rows of the weights."""
        return self.node.input_value(2)

    @property
    def zero_point(self) -> Output | None:
        """[blocks, N], of the weights' type; None for 0."""
        return self.input(3)

    @property
    def bias(self) -> Output | None:
        """The bias, [N]; None if omitted."""
        return self.input(4)

    @property
    def residual(self) -> Output | None:
        """[..., N], of the output's shape."""
        return self.input(5)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, weights, scale, zero_point, bias, residual = padded(inputs, 6)
    assert x is not None
    assert weights is not None
    assert scale is not None
    spec = CompressedMatMulSpec.of(node)
    _check_shapes(spec, weights, scale, zero_point, bias)
    if zero_point is not None and zero_point.element_type is not weights.element_type:
        fail(node, f"the zero point is {zero_point.element_type}; expected {weights.element_type}, as the weights")
    if scale.element_type is not x.element_type:
        scale = create("CastLike", [scale, x]).output(0)
    attributes = {"axis": 0, "block_size": spec.block_size}
    matrix = create("DequantizeLinear", [weights, scale, zero_point], attributes)
    value = create("MatMul", [x, matrix]).output(0)
    if bias is not None:
        value = create("Add", [value, bias]).output(0)
    return [finish(node, value, residual, spec.activation)]


def _check_shapes(
    spec: CompressedMatMulSpec, weights: Output, scale: Output, zero_point: Output | None, bias: Output | None
) -> None:
    if not weights.shape.is_static:
        return
    k, n = weights.shape.get_shape()
    blocks = -(-k // spec.block_size)
    for name, value, expected in (
        ("scale", scale, (blocks, n)),
        ("zero point", zero_point, (blocks, n)),
        ("bias", bias, (n,)),
    ):
        if value is not None and not value.shape.accepts(expected):
            wanted = f"{list(expected)} for weights [{k}, {n}] in blocks of {spec.block_size}"
            fail(spec.node, f"the {name} has shape {value.shape}; expected {wanted}")


define(
    "CompressedMatMul",
    [("X", False), ("W", False), ("scale", False), ("zero_point", True), ("bias", True), ("residual", True)],
    {"block_size": 128, "accuracy_level": 0, "activation": "", "activation_parameters": ()},
    _decompose,
    "activation(MatMul(X, DequantizeLinear(W, scale, zero_point, axis=0, block_size)) + bias + residual).",
    {"W": INTEGERS, "scale": _SCALES, "zero_point": INTEGERS},
)
