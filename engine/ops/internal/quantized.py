"""`QuantizedConv` and `QuantizedMatMul`: operators on 8-bit integers, with everything up to the next quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.ir import (
    ElementType,
    Node,
    Output,
    OutputLike,
    PartialShape,
    TensorType,
    ValueType,
    as_output,
    f32,
    undefined,
)
from engine.ops.conv import ConvSpec, convolved_shape
from engine.ops.create import create
from engine.ops.fused_activation import Activation, apply_activation
from engine.ops.internal.definition import define, padded
from engine.ops.matmul import MatMulSpec, product_type
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_TRANSPOSED: Final = (*_CONV, "output_padding", "output_shape")
_BYTES: Final = ["tensor(uint8)", "tensor(int8)"]
_INTS: Final = onnx.defs.OpSchema.AttrType.INTS
_PORTS: Final = (
    "X", "X_scale", "X_zero_point", "W", "W_scale", "B", "residual", "residual_scale", "residual_zero_point",
    "middle_scale", "middle_zero_point", "Y_scale", "Y_zero_point", "W_zero_point", "middle_B",
)  # fmt: skip
_REQUIRED: Final = frozenset({"X", "X_scale", "X_zero_point", "W", "W_scale"})
_TYPES: Final = {
    "X": _BYTES, "X_zero_point": _BYTES, "W": ["tensor(int8)"],
    "residual": [*_BYTES, "tensor(float)"], "residual_zero_point": _BYTES, "middle_zero_point": _BYTES,
    "Y_zero_point": _BYTES, "W_zero_point": ["tensor(int8)"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantized:
    """The operands of a QuantizedConv or QuantizedMatMul.

    Attributes:
        x: u8 or i8, with one scale and zero point.
        weights: i8, with one scale, or one for each output channel or column.
        bias: f32, [output channels or columns].
        residual: a tensor of the output's shape: f32, or u8 or i8 with one scale and zero point.
        middle_scale: if not None, the sum with the bias is quantized and dequantized before the residual is added, with
            this scale and `middle_zero_point`.
        middle_bias: as `bias`, but added after that; only for products.
        y_scale: if not None, the result is quantized with this scale and `y_zero_point`, whose type it has; otherwise
            it is f32.
        weights_zero_point: i8, as many numbers as there are scales of weights; None if all are 0.
    """

    x: OutputLike
    x_scale: OutputLike
    x_zero_point: OutputLike
    weights: OutputLike
    weights_scale: OutputLike
    bias: OutputLike | None = None
    residual: OutputLike | None = None
    residual_scale: OutputLike | None = None
    residual_zero_point: OutputLike | None = None
    middle_scale: OutputLike | None = None
    middle_zero_point: OutputLike | None = None
    y_scale: OutputLike | None = None
    y_zero_point: OutputLike | None = None
    weights_zero_point: OutputLike | None = None
    middle_bias: OutputLike | None = None

    @classmethod
    def of(cls, node: Node, inputs: Sequence[Output | None] | None = None) -> Quantized:
        """The operands of a node, or `inputs` in their place."""
        given = padded(node.input_values if inputs is None else inputs, len(_PORTS))
        return cls(*given)  # type: ignore[arg-type]  # those without a default are never omitted

    @property
    def inputs(self) -> list[OutputLike | None]:
        """The inputs of the node, in order."""
        return [getattr(self, name) for name in self.__dataclass_fields__]


def QuantizedConv(  # noqa: N802 - constructors of operators are called as the operators are
    operands: Quantized, *, activation: Activation | None = None, transposed: bool = False, **attributes: Any
) -> Node:
    """`Q(activation(DQ(Q(Conv(DQ(x), DQ(weights), bias))) + DQ(residual)))`; all but the convolution are optional.

    Args:
        operands: x is [N, C, ...], the weights are as for Conv, or for ConvTranspose if `transposed`; then groups need
            weights with one scale.
        activation: applied before the result is quantized.
        transposed: whether it is a ConvTranspose.
        attributes: the attributes of Conv or ConvTranspose.
    """
    own = {"transposed": int(transposed), **attributes}
    return create("QuantizedConv", operands.inputs, _activated(own, activation), domain=INTERNAL_DOMAIN)


def QuantizedMatMul(  # noqa: N802
    operands: Quantized, *, activation: Activation | None = None, trans_b: bool = False
) -> Node:
    """The same with a MatMul of x, [..., M, K], and the weights, [K, N], or [N, K] with `trans_b`.

    `middle_bias` is added to `DQ(Q(MatMul))`.
    """
    own = _activated({"trans_b": int(trans_b)}, activation)
    return create("QuantizedMatMul", operands.inputs, own, domain=INTERNAL_DOMAIN)


def _activated(attributes: dict[str, Any], activation: Activation | None) -> dict[str, Any]:
    if activation is None:
        return attributes
    return {**attributes, "activation": activation.name, "activation_parameters": activation.parameters or None}


def _decompose_conv(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    operands, spec = Quantized.of(node, inputs), ConvSpec.of(node)
    kind, names = ("ConvTranspose", _TRANSPOSED) if spec.transposed else ("Conv", _CONV)
    attributes: dict[str, Any] = {name: node.attributes[name] for name in names if name in node.attributes}
    x, weights = _dequantized_operands(operands, int(spec.transposed))
    sums = create(kind, [x, weights, operands.bias], attributes).output(0)
    return [_finish(node, sums, operands, spec.activation)]


def _decompose_matmul(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    operands, spec = Quantized.of(node, inputs), MatMulSpec.of(node)
    x, weights = _dequantized_operands(operands, 0 if spec.trans_b else 1)
    if spec.trans_b:
        weights = create("Transpose", [weights], {"perm": (1, 0)}).output(0)
    sums = create("MatMul", [x, weights]).output(0)
    if operands.bias is not None:
        sums = create("Add", [sums, operands.bias]).output(0)
    return [_finish(node, sums, operands, spec.activation)]


def _dequantized_operands(operands: Quantized, axis: int) -> tuple[Output, Output]:
    x = create("DequantizeLinear", [operands.x, operands.x_scale, operands.x_zero_point])
    given = [operands.weights, operands.weights_scale, operands.weights_zero_point]
    weights = create("DequantizeLinear", given, {"axis": axis})
    return x.output(0), weights.output(0)


def _finish(node: Node, value: Output, operands: Quantized, activation: Activation | None) -> Output:
    if operands.middle_scale is not None:
        middle = [operands.middle_scale, operands.middle_zero_point]
        codes = create("QuantizeLinear", [value, *middle])
        value = create("DequantizeLinear", [codes, *middle]).output(0)
    if operands.middle_bias is not None:
        if operands.middle_scale is None or node.op_type != "QuantizedMatMul":
            fail(node, "input 14 (middle_B) is for products whose sums are quantized")
        value = create("Add", [value, operands.middle_bias]).output(0)
    residual = operands.residual
    if residual is not None:
        if operands.residual_scale is not None:
            given = [residual, operands.residual_scale, operands.residual_zero_point]
            residual = create("DequantizeLinear", given).output(0)
        assert isinstance(residual, Output)
        if not residual.shape.compatible(value.shape):
            fail(node, f"the residual is {residual.type} and must have the type of the sums, {value.type}")
        value = create("Add", [value, residual]).output(0)
    if activation is not None:
        value = apply_activation(value, activation)
    if operands.y_scale is None:
        return value
    return create("QuantizeLinear", [value, operands.y_scale, operands.y_zero_point]).output(0)


def _infer_conv(node: Node) -> Sequence[ValueType] | None:
    """The type of a convolution whose operands have the usual types; None for others, and for transposed ones."""
    operands, spec = Quantized.of(node), ConvSpec.of(node)
    if spec.transposed:
        return None
    x, weights = _tensor(operands.x), _tensor(operands.weights)
    if not weights.shape.is_static or len(weights.shape) < 3 or not _are_usual(operands, weights.shape.get_shape()[0]):
        return None
    bias = None if operands.bias is None else _tensor(operands.bias).shape
    return _finished(operands, convolved_shape(spec, x.shape, weights.shape, bias))


def _infer_matmul(node: Node) -> Sequence[ValueType] | None:
    """The type of a product whose operands have the usual types; None for others."""
    operands, spec = Quantized.of(node), MatMulSpec.of(node)
    x, weights = _tensor(operands.x), _tensor(operands.weights)
    if not weights.shape.is_static or len(weights.shape) != 2:
        return None
    shape = weights.shape.get_shape()[:: -1 if spec.trans_b else 1]
    if not _are_usual(operands, shape[1]) or x.shape.rank.is_dynamic or len(x.shape) < 2:
        return None
    product = product_type(node, TensorType(f32, x.shape), TensorType(f32, PartialShape(shape)))
    return _finished(operands, product.shape)


def _are_usual(operands: Quantized, channels: int) -> bool:
    """Whether all operands but x and the residual have known shapes that fit, so that nothing is left to check."""
    numbers = (
        (operands.x_scale, f32), (operands.x_zero_point, _tensor(operands.x).element_type),
        (operands.middle_scale, f32), (operands.y_scale, f32), (operands.residual_scale, f32),
    )  # fmt: skip
    for value, element_type in numbers:
        if value is not None and not _is_number(_tensor(value), element_type):
            return False
    zero_points = (operands.middle_zero_point, operands.y_zero_point)
    for scale, zero_point in zip((operands.middle_scale, operands.y_scale), zero_points, strict=True):
        if (scale is None) != (zero_point is None):
            return False
        if zero_point is not None and not _is_number(_tensor(zero_point), None):
            return False
    scales = _tensor(operands.weights_scale)
    if scales.element_type is not f32 or scales.shape not in (PartialShape([]), PartialShape([channels])):
        return False
    if operands.bias is not None and _tensor(operands.bias) != TensorType(f32, PartialShape([channels])):
        return False
    return operands.weights_zero_point is None and operands.middle_bias is None


def _is_number(value: TensorType, element_type: ElementType | None) -> bool:
    fits = element_type is None or value.element_type is element_type
    return fits and value.shape.is_static and value.shape.get_shape() in ((), (1,))


def _finished(operands: Quantized, shape: PartialShape) -> Sequence[ValueType] | None:
    """The type of a result of this shape after the residual and the quantization; None to ask the decomposition."""
    if not shape.is_static:
        return None
    if operands.residual is not None:
        residual = _tensor(operands.residual)
        zero_point = operands.residual_zero_point
        expected = f32 if zero_point is None else _tensor(zero_point).element_type
        if residual.shape != shape or residual.element_type is not expected:
            return None
        if (operands.residual_scale is None) != (zero_point is None):
            return None
        if zero_point is not None and not _is_number(_tensor(zero_point), None):
            return None
    if operands.y_zero_point is None:
        return (TensorType(f32, shape),)
    return (TensorType(_tensor(operands.y_zero_point).element_type, shape),)


def _tensor(value: OutputLike) -> TensorType:
    """The type of an operand, which `check_inputs` has found to be a tensor; of unknown rank if nothing is known."""
    value_type = as_output(value).type
    return value_type if isinstance(value_type, TensorType) else TensorType(undefined, PartialShape.dynamic())


define(
    "QuantizedConv",
    [(name, name not in _REQUIRED) for name in _PORTS],
    {
        "transposed": 0,
        "activation": "",
        "activation_parameters": (),
        "auto_pad": "NOTSET",
        "group": 1,
        **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides", "output_padding", "output_shape"), _INTS),
    },
    _decompose_conv,
    "A convolution of 8-bit integers: Q(activation(DQ(Q(Conv(DQ(X), DQ(W), B))) + DQ(residual))), or with "
    "ConvTranspose if `transposed` is 1.",
    _TYPES,
    ["tensor(uint8)", "tensor(int8)", "tensor(float)"],
    rule=_infer_conv,
)
define(
    "QuantizedMatMul",
    [(name, name not in _REQUIRED) for name in _PORTS],
    {"trans_b": 0, "activation": "", "activation_parameters": ()},
    _decompose_matmul,
    "A product of 8-bit matrices: Q(activation(DQ(Q(MatMul(DQ(X), DQ(W)) + B)) + DQ(residual))).",
    _TYPES,
    ["tensor(uint8)", "tensor(int8)", "tensor(float)"],
    rule=_infer_matmul,
)
