"""`QuantizedSoftmax`: a Softmax up to the next quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.ir import Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.internal.quantized_maps import Codes
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.softmax import SoftmaxSpec
from engine.ops.spec import specifies
from engine.startup import dataclass

_BYTES: Final = ["tensor(uint8)", "tensor(int8)"]
_PORTS: Final = ("X", "X_scale", "X_zero_point", "Y_scale", "Y_zero_point")


@specifies("QuantizedSoftmax", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSoftmaxSpec(SoftmaxSpec):
    """Softmax of 8-bit codes with 8-bit results; the attributes are Softmax's."""


def QuantizedSoftmax(x: Codes | OutputLike, y: Codes, *, axis: int) -> Node:  # noqa: N802 - as operators are called
    """`Q(Softmax(DQ(x)))`.

    Args:
        x: u8 or i8, with one scale and zero point; or f32, which is not dequantized.
        y: the scale and zero point of the result; its `values` are None.
        axis: Softmax's axis.
    """
    given = x.inputs if isinstance(x, Codes) else [x, None, None]
    return create("QuantizedSoftmax", [*given, *y.inputs[1:]], {"axis": axis}, domain=INTERNAL_DOMAIN)


def softmax_codes(node: Node, inputs: Sequence[Output | None] | None = None) -> tuple[Codes, Codes]:
    """The operand of a QuantizedSoftmax, whose scale is None if it is f32, and its result, whose `values` are None."""
    given = padded(node.input_values if inputs is None else inputs, len(_PORTS))
    return Codes(*given[:3]), Codes(None, *given[3:])


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, y = softmax_codes(node, inputs)
    value = x.values if x.scale is None else create("DequantizeLinear", x.inputs)
    shares = create("Softmax", [value], {"axis": node.attributes.get("axis", -1)})
    return [create("QuantizeLinear", [shares, y.scale, y.zero_point]).output(0)]


define(
    "QuantizedSoftmax",
    [(port, port in ("X_scale", "X_zero_point")) for port in _PORTS],
    {"axis": -1},
    _decompose,
    "The shares of 8-bit integers or f32, as 8-bit integers: Q(Softmax(DQ(X))).",
    {"X": [*_BYTES, "tensor(float)"], "X_zero_point": _BYTES, "Y_zero_point": _BYTES},
    _BYTES,
)
