"""`QuantizedProduct`: a product of two computed matrices of 8-bit integers, up to the next quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.ir import Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.startup import dataclass

_BYTES: Final = ["tensor(uint8)", "tensor(int8)"]
_PORTS: Final = ("A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "Y_scale", "Y_zero_point")
_TYPES: Final = {port: _BYTES for port in _PORTS if not port.endswith("scale")}


@dataclass(frozen=True, slots=True)
class ProductOperands:
    """The operands of a QuantizedProduct.

    Attributes:
        a: u8 or i8, [..., M, K], with one scale and zero point.
        b: u8 or i8, [..., K, N], with one scale and zero point.
        y_scale: if not None, the result is quantized with this scale and `y_zero_point`, whose type it has; otherwise
            it is f32.
    """

    a: OutputLike
    a_scale: OutputLike
    a_zero_point: OutputLike
    b: OutputLike
    b_scale: OutputLike
    b_zero_point: OutputLike
    y_scale: OutputLike | None = None
    y_zero_point: OutputLike | None = None

    @classmethod
    def of(cls, node: Node, inputs: Sequence[Output | None] | None = None) -> ProductOperands:
        """Name the operands of `node`, taking `inputs` instead of its own inputs if given."""
        given = padded(node.input_values if inputs is None else inputs, len(_PORTS))
        return cls(*given)  # type: ignore[arg-type]  # those without a default are never omitted

    @property
    def inputs(self) -> list[OutputLike | None]:
        """The inputs of the node, in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def QuantizedProduct(operands: ProductOperands) -> Node:  # noqa: N802 - as the operators are called
    """`Q(MatMul(DQ(a), DQ(b)))`, or without the last quantization; dimensions before the matrices broadcast."""
    return create("QuantizedProduct", operands.inputs, domain=INTERNAL_DOMAIN)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    given = ProductOperands.of(node, inputs)
    a = create("DequantizeLinear", [given.a, given.a_scale, given.a_zero_point])
    b = create("DequantizeLinear", [given.b, given.b_scale, given.b_zero_point])
    product = create("MatMul", [a, b]).output(0)
    if given.y_scale is None:
        return [product]
    return [create("QuantizeLinear", [product, given.y_scale, given.y_zero_point]).output(0)]


define(
    "QuantizedProduct",
    [(port, port.startswith("Y")) for port in _PORTS],
    {},
    _decompose,
    "A product of two matrices of 8-bit integers: Q(MatMul(DQ(A), DQ(B))).",
    _TYPES,
    [*_BYTES, "tensor(float)"],
)
