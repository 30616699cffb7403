"""Elementwise operators: specs of those with attributes, the type rules, which broadcast, and facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from engine.ir import ElementType, Node, TensorType, ValueType, boolean, undefined
from engine.ops.creation import element_type_of
from engine.ops.registry import OpDef, TypeRule, get_op, infers
from engine.ops.rules import broadcast_shapes, check_inputs, fail, tensor_type, with_element
from engine.ops.spec import OperatorSpec, check_choice, refuse, specifies
from engine.ops.traits import EVERY, Growth, Moves, declare
from engine.startup import dataclass


@specifies("Mod")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModSpec(OperatorSpec):
    """The remainder, with the sign of the divisor, or of the dividend with `fmod`."""

    fmod: bool


@specifies("BitShift")
@dataclass(frozen=True, slots=True, kw_only=True)
class BitShiftSpec(OperatorSpec):
    """Bits shifted by the second input."""

    direction: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "direction", given["direction"], ("LEFT", "RIGHT"))


@specifies("IsInf")
@dataclass(frozen=True, slots=True, kw_only=True)
class IsInfSpec(OperatorSpec):
    """Whether elements are infinite and have one of the selected signs."""

    detect_negative: bool
    detect_positive: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given.update({name: bool(value) for name, value in given.items()})


@specifies("CastLike")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSpec(OperatorSpec):
    """Conversion to another element type. `saturate` and `round_mode` are for 8-bit floating-point types."""

    saturate: bool
    round_mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "round_mode", given["round_mode"], ("up", "down", "nearest"))


@specifies("Cast")
@dataclass(frozen=True, slots=True, kw_only=True)
class CastSpec(ConversionSpec):
    """Conversion to `to`. Raises `OperatorSpecError` for types to which ONNX does not convert."""

    to: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super().resolve(node, given)
        given["to"] = element_type_of(node, "to", given["to"])
        if given["to"] not in get_op("Cast").outputs[0].elements:
            refuse(node, "to", given["to"].name, "a type to which ONNX can convert")


_NOT_NEGATIVE: Final = (0.0, math.inf)
_UP_TO_ONE: Final = (-1.0, 1.0)


def _unary_rule(op: OpDef) -> TypeRule:
    allowed = op.inputs[0].elements

    def rule(node: Node) -> Sequence[ValueType] | None:
        source = node.sources[0] if node.sources else None
        if source is None:
            source = node.input_value(0)  # raises
        value_type = source.node.output_types[source.index]
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


# -- one line for each operator: its facts, and with them its type rule ----------------------------------
# Activations have their lines in activations.py. The expressions, of which devices make kernels, are in
# csrc/pointwise.def.


def unary(op_type: str, **facts: Any) -> None:
    """The result has the type of the only input."""
    get_op(op_type).rule = _unary_rule(get_op(op_type))
    _pointwise(op_type, **facts)


def _arithmetic(op_type: str, **facts: Any) -> None:
    """The result has the element type of the inputs, which broadcast."""
    get_op(op_type).rule = _broadcast_rule(get_op(op_type), None)
    _pointwise(op_type, data=EVERY, broadcasts=True, **facts)


def _predicate(op_type: str, **facts: Any) -> None:
    """The result is boolean, and the inputs broadcast."""
    get_op(op_type).rule = _broadcast_rule(get_op(op_type), boolean)
    _pointwise(op_type, data=EVERY, broadcasts=True, **facts)


def _pointwise(op_type: str, **facts: Any) -> None:
    declare(op_type, pointwise=True, **facts)


unary("Abs", keeps_zero=True, range=_NOT_NEGATIVE)
unary("Acos", monotonic=True, range=(0.0, math.pi))
unary("Acosh", monotonic=True, range=_NOT_NEGATIVE, growth=Growth.SHRINKS)
unary("Asin", monotonic=True, keeps_zero=True, range=(-math.pi / 2, math.pi / 2))
unary("Asinh", monotonic=True, keeps_zero=True, growth=Growth.SHRINKS)
unary("Atan", monotonic=True, keeps_zero=True, range=(-math.pi / 2, math.pi / 2))
unary("Atanh", monotonic=True, keeps_zero=True)
unary("BitwiseNot")
unary("Ceil", monotonic=True, keeps_zero=True)
unary("Cos", range=_UP_TO_ONE)
unary("Cosh", range=(1.0, math.inf), growth=Growth.GROWS)
unary("Erf", monotonic=True, keeps_zero=True, range=_UP_TO_ONE)
unary("Exp", monotonic=True, range=_NOT_NEGATIVE, growth=Growth.GROWS)
unary("Floor", monotonic=True, keeps_zero=True)
unary("Log", monotonic=True, growth=Growth.SHRINKS)
unary("Neg", monotonic=True, keeps_zero=True)
unary("Not", monotonic=True)
unary("Reciprocal")
unary("Round", monotonic=True, keeps_zero=True)
unary("Sign", monotonic=True, keeps_zero=True, range=_UP_TO_ONE)
unary("Sin", keeps_zero=True, range=_UP_TO_ONE)
unary("Sinh", monotonic=True, keeps_zero=True, growth=Growth.GROWS)
unary("Sqrt", monotonic=True, keeps_zero=True, range=_NOT_NEGATIVE, growth=Growth.SHRINKS)
unary("Tan", keeps_zero=True)

_arithmetic("Add", commutative=True, keeps_zero=True)
_arithmetic("BitShift", keeps_zero=True)
_arithmetic("BitwiseAnd", commutative=True, keeps_zero=True)
_arithmetic("BitwiseOr", commutative=True, keeps_zero=True)
_arithmetic("BitwiseXor", commutative=True, keeps_zero=True)
_arithmetic("Div")
_arithmetic("Max", commutative=True, keeps_zero=True)
_arithmetic("Mean", commutative=True, keeps_zero=True)
_arithmetic("Min", commutative=True, keeps_zero=True)
_arithmetic("Mod")
_arithmetic("Mul", commutative=True, keeps_zero=True)
_arithmetic("Sub", keeps_zero=True)
_arithmetic("Sum", commutative=True, keeps_zero=True, sums=True)

_predicate("And", commutative=True, keeps_zero=True)
_predicate("Equal", commutative=True)
_predicate("Greater", keeps_zero=True)
_predicate("GreaterOrEqual")
_predicate("Less", keeps_zero=True)
_predicate("LessOrEqual")
_predicate("Or", commutative=True, keeps_zero=True)
_predicate("Xor", commutative=True, keeps_zero=True)

_pointwise("BitCast", keeps_zero=True)
_pointwise("Cast")
_pointwise("CastLike")
_pointwise("Clip", monotonic=True, activation=("min", "max"))
_pointwise("Identity", monotonic=True, keeps_zero=True, moves=Moves.VIEW)
_pointwise("IsInf")
_pointwise("IsNaN")
_pointwise("PRelu", data=2, keeps_zero=True)
_pointwise("Pow", data=2, broadcasts=True, growth=Growth.GROWS)
_pointwise("Where", data=3, broadcasts=True, keeps_zero=True)


@infers("Identity")
def _infer_identity(node: Node) -> Sequence[ValueType]:
    return (node.input_value(0).type,)


@infers("Clip", "CumProd", "CumSum", "ReverseSequence", "Trilu")
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
