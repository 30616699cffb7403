"""Elementwise operators: specs of those with attributes, and the type rules, which broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.ir import ElementType, Node, TensorType, ValueType, boolean, undefined
from engine.ops.creation import element_type_of
from engine.ops.registry import OpDef, TypeRule, get_op, infers
from engine.ops.rules import broadcast_shapes, check_inputs, fail, tensor_type, with_element
from engine.ops.spec import OperatorSpec, check_choice, refuse, specifies


@specifies("Mod")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModSpec(OperatorSpec):
    """The remainder, with the sign of the divisor, or of the dividend with `fmod`."""

    fmod: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        given["fmod"] = bool(given["fmod"])


@specifies("BitShift")
@dataclass(frozen=True, slots=True, kw_only=True)
class BitShiftSpec(OperatorSpec):
    """Bits shifted by the second input."""

    direction: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        check_choice(node, "direction", given["direction"], ("LEFT", "RIGHT"))


@specifies("IsInf")
@dataclass(frozen=True, slots=True, kw_only=True)
class IsInfSpec(OperatorSpec):
    """Whether elements are infinite and have one of the selected signs."""

    detect_negative: bool
    detect_positive: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        given.update({name: bool(value) for name, value in given.items()})


@specifies("CastLike")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSpec(OperatorSpec):
    """Conversion to another element type. `saturate` and `round_mode` are for 8-bit floating-point types."""

    saturate: bool
    round_mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        given["saturate"] = bool(given["saturate"])
        check_choice(node, "round_mode", given["round_mode"], ("up", "down", "nearest"))


@specifies("Cast")
@dataclass(frozen=True, slots=True, kw_only=True)
class CastSpec(ConversionSpec):
    """Conversion to element type `to`."""

    to: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super(CastSpec, cls).resolve(node, given)
        given["to"] = element_type_of(node, "to", given["to"])
        if given["to"] not in get_op("Cast").outputs[0].elements:
            refuse(node, "to", given["to"].name, "a type to which ONNX can convert")


# The output has the type of the only input.
_UNARY: Final = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
]  # fmt: skip
# The output has the type of the first input.
_FIRST: Final = ["Clip", "CumProd", "CumSum", "ReverseSequence", "Trilu"]
_ARITHMETIC: Final = [
    "Add", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Sub",
    "Sum",
]  # fmt: skip
_PREDICATE: Final = ["And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"]

POINTWISE: Final = frozenset([*_UNARY, *_ARITHMETIC, *_PREDICATE])
"""Operators that compute each element of the result from the elements at its place."""


def _unary_rule(op: OpDef) -> TypeRule:
    allowed = op.inputs[0].elements

    def rule(node: Node) -> Sequence[ValueType] | None:
        source = node.input_value(0)
        value_type = source.type
        if type(value_type) is TensorType and value_type.element_type in allowed:
            return (value_type,)
        check_inputs(node, op)
        return (value_type,)

    return rule


def _broadcast_rule(op: OpDef, result: ElementType | None) -> TypeRule:
    allowed = op.inputs[0].elements

    def rule(node: Node) -> Sequence[ValueType] | None:
        if node.num_inputs != 2:
            return general(node)
        a, b = node.input_value(0).type, node.input_value(1).type
        if type(a) is not TensorType or type(b) is not TensorType:
            return general(node)
        element_type = a.element_type
        if element_type is not b.element_type or element_type not in allowed:
            return general(node)
        if a.shape is b.shape or a.shape == b.shape:
            return (a if result is None else TensorType(result, a.shape),)
        return (TensorType(result or element_type, broadcast_shapes(node, (a.shape, b.shape))),)

    def general(node: Node) -> Sequence[ValueType]:
        check_inputs(node, op)
        types = [tensor_type(node, index) for index in range(node.num_inputs)]
        known = [t.element_type for t in types if t.element_type is not undefined]
        shape = broadcast_shapes(node, [t.shape for t in types])
        return (TensorType(result or (known[0] if known else undefined), shape),)

    return rule


def _register(op_types: Sequence[str], make: Callable[[OpDef], TypeRule]) -> None:
    for op_type in op_types:
        op = get_op(op_type)
        op.rule = make(op)


_register(_UNARY, _unary_rule)
_register(_ARITHMETIC, lambda op: _broadcast_rule(op, None))
_register(_PREDICATE, lambda op: _broadcast_rule(op, boolean))


@infers("Identity")
def _infer_identity(node: Node) -> Sequence[ValueType]:
    return (node.input_value(0).type,)


@infers(*_FIRST)
def _infer_first(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    return (tensor_type(node, 0),)


@infers("Pow")
def _infer_pow(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Pow"))
    base, exponent = tensor_type(node, 0), tensor_type(node, 1)
    return (TensorType(base.element_type, broadcast_shapes(node, (base.shape, exponent.shape))),)


@infers("PRelu")
def _infer_prelu(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("PRelu"))
    data, slope = tensor_type(node, 0), tensor_type(node, 1)
    if data.shape.rank.is_static and slope.shape.rank.is_static:
        shape = broadcast_shapes(node, (data.shape, slope.shape))
        if len(shape) != len(data.shape) or not shape.compatible(data.shape):
            fail(node, f"slope {slope.shape} must broadcast to the shape of X, {data.shape}")
    return (data,)


@infers("Where")
def _infer_where(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Where"))
    types = [tensor_type(node, index) for index in range(3)]
    element_type = types[1].element_type if types[1].element_type is not undefined else types[2].element_type
    return (TensorType(element_type, broadcast_shapes(node, [t.shape for t in types])),)


@infers("IsNaN", "IsInf")
def _infer_predicate(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    return (with_element(tensor_type(node, 0), boolean),)


@infers("Cast")
def _infer_cast(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Cast"))
    return (with_element(tensor_type(node, 0), CastSpec.of(node).to),)


@infers("CastLike")
def _infer_cast_like(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("CastLike"))
    return (with_element(tensor_type(node, 0), tensor_type(node, 1).element_type),)
