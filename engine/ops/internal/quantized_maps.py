"""`QuantizedAveragePool` and `QuantizedBinary`: operators on 8-bit tensors, up to the next quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.ir import Node, Output, OutputLike
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.spec import OperatorSpec, check_choice, specifies
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

BINARY_OPERATORS: Final = ("Add", "Mul")
_POOL: Final = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")
_BYTES: Final = ["tensor(uint8)", "tensor(int8)"]
_RESULTS: Final = [*_BYTES, "tensor(float)"]
_INTS: Final = onnx.defs.OpSchema.AttrType.INTS
_POOL_PORTS: Final = ("X", "X_scale", "X_zero_point", "Y_scale", "Y_zero_point")
_BINARY_PORTS: Final = ("A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "Y_scale", "Y_zero_point")


@dataclass(frozen=True, slots=True)
class Codes:
    """A tensor of 8-bit integers, or the scale and zero point to which a result is quantized.

    Attributes:
        values: u8 or i8; for a result, None.
        scale: f32, one number; for a result, None if it is f32.
        zero_point: of the type of `values`.
    """

    values: OutputLike | None
    scale: OutputLike | None
    zero_point: OutputLike | None

    @property
    def inputs(self) -> list[OutputLike | None]:
        """The inputs of a node that stand for them."""
        return [self.values, self.scale, self.zero_point]


REAL: Final = Codes(None, None, None)
"""A result of f32."""


@specifies("QuantizedBinary", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedBinarySpec(OperatorSpec):
    """QuantizedBinary; `operator` is one of `BINARY_OPERATORS`."""

    operator: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "operator", given["operator"], BINARY_OPERATORS)


def QuantizedAveragePool(x: Codes, y: Codes = REAL, **attributes: Any) -> Node:  # noqa: N802 - as operators are called
    """`Q(AveragePool(DQ(x)))`, or without the quantization; the attributes are AveragePool's."""
    return create("QuantizedAveragePool", [*x.inputs, *y.inputs[1:]], attributes, domain=INTERNAL_DOMAIN)


def QuantizedBinary(a: Codes, b: Codes, y: Codes = REAL, *, operator: str) -> Node:  # noqa: N802
    """`Q(operator(DQ(a), DQ(b)))`, or without the quantization, for one of `BINARY_OPERATORS`."""
    inputs = [*a.inputs, *b.inputs, *y.inputs[1:]]
    return create("QuantizedBinary", inputs, {"operator": operator}, domain=INTERNAL_DOMAIN)


def codes_of(node: Node, inputs: Sequence[Output | None] | None = None) -> tuple[Codes, ...]:
    """The operands of a node, and its result, whose `values` are None."""
    count = len(_POOL_PORTS if node.op_type == "QuantizedAveragePool" else _BINARY_PORTS)
    given = padded(node.input_values if inputs is None else inputs, count)
    operands = [Codes(*given[at : at + 3]) for at in range(0, count - 2, 3)]
    return (*operands, Codes(None, *given[-2:]))


def _decompose_pool(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, y = codes_of(node, inputs)
    attributes: dict[str, Any] = {name: node.attributes[name] for name in _POOL if name in node.attributes}
    return [_quantized(create("AveragePool", [_dequantized(x)], attributes).output(0), y)]


def _decompose_binary(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    a, b, y = codes_of(node, inputs)
    spec = QuantizedBinarySpec.of(node)
    return [_quantized(create(spec.operator, [_dequantized(a), _dequantized(b)]).output(0), y)]


def _dequantized(codes: Codes) -> Output:
    return create("DequantizeLinear", codes.inputs).output(0)


def _quantized(value: Output, y: Codes) -> Output:
    return value if y.scale is None else create("QuantizeLinear", [value, y.scale, y.zero_point]).output(0)


define(
    "QuantizedAveragePool",
    [(port, port.startswith("Y")) for port in _POOL_PORTS],
    {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "count_include_pad": 0,
        **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"), _INTS),
    },
    _decompose_pool,
    "The averages of windows of 8-bit integers: Q(AveragePool(DQ(X))).",
    {port: _BYTES for port in _POOL_PORTS if not port.endswith("scale")},
    _RESULTS,
)
define(
    "QuantizedBinary",
    [(port, port.startswith("Y")) for port in _BINARY_PORTS],
    {"operator": "Add"},
    _decompose_binary,
    "A sum or product of 8-bit integers: Q(operator(DQ(A), DQ(B))).",
    {port: _BYTES for port in _BINARY_PORTS if not port.endswith("scale")},
    _RESULTS,
)
