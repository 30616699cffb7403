"""Elementwise operators as instructions: the element types of each, and its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine.ir import Constant, ElementType
from engine.ir.element_type import bf16, boolean, f8e8m0, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from engine.native import pointwise_functions
from engine.ops.activations import ActivationSpec, GeluSpec
from engine.ops.elementwise import BitShiftSpec, ConversionSpec, IsInfSpec, ModSpec
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import OperatorSpec
from engine.ops.traits import traits_of_operator
from engine.startup import dataclass
from engine_cpu.lowering.elementwise_instructions import Opcode, Value
from engine_cpu.lowering.elementwise_program import SMALL_INTEGERS, SMALL_REALS, ElementwiseProgram

REALS: Final = frozenset({f32, f64, f16, bf16})
INTEGERS: Final = frozenset({u8, u16, u32, u64, i8, i16, i32, i64})
NUMBERS: Final = REALS | INTEGERS
ALL: Final = NUMBERS | {boolean}
BOOLEANS: Final = frozenset({boolean})
BYTES: Final = frozenset({u8, i8})
CONVERTIBLE: Final = ALL | SMALL_REALS | frozenset(SMALL_INTEGERS)

Emit: TypeAlias = "Callable[[ElementwiseProgram, Any, Sequence[Value]], Value]"
"""Appends a node to a program, given its spec and the values of its present inputs."""


@dataclass(frozen=True, slots=True)
class ElementwiseOp:
    """An operator: the element types that its inputs may have, and its code."""

    types: Collection[ElementType]
    emit: Emit


OPS: Final[dict[str, ElementwiseOp]] = {}


def _add(op_types: str, types: Collection[ElementType], emit: Emit) -> None:
    for op_type in op_types.split():
        OPS[op_type] = ElementwiseOp(types, emit)


def _emits(op_types: str, types: Collection[ElementType]) -> Callable[[Emit], Emit]:
    def register(emit: Emit) -> Emit:
        _add(op_types, types, emit)
        return emit

    return register


def _plain(opcode: Opcode) -> Emit:
    """The instruction of the same name, on the inputs."""
    return lambda p, spec, x: p.op(opcode, *x)


def _swapped(opcode: Opcode) -> Emit:
    return lambda p, spec, x: p.op(opcode, x[1], x[0])


def _chained(opcode: Opcode) -> Emit:
    """The code of an operator with any number of inputs."""
    return lambda p, spec, x: functools.reduce(functools.partial(p.op, opcode), x)


def _with_parameters(opcode: str) -> Emit:
    """The instruction on the inputs and, of an activation, its parameters."""

    def emit(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
        if not isinstance(spec, ActivationSpec):
            return p.op(opcode, *x)
        # Attributes are f32, even of f64 nodes.
        numbers = [float(np.float32(number)) for number in spec.parameters]
        return p.op(opcode, *x, *(p.parameter(number, x[0]) for number in numbers))

    return emit


def _celu(p: ElementwiseProgram, spec: ActivationSpec, x: Sequence[Value]) -> Value:
    """The instruction computes exponentials only of values below 0; expm1(t) is -expm1(-t) * exp(t)."""
    (alpha,) = (float(np.float32(number)) for number in spec.parameters)
    if alpha > 0:
        return p.op(Opcode.CELU, x[0], p.parameter(alpha, x[0]))
    zero, one, scale = (p.parameter(number, x[0]) for number in (0.0, 1.0, -alpha))
    below = p.op(Opcode.DIV, p.op(Opcode.MIN, x[0], zero), scale)  # -t, at most 0
    powers = p.op(Opcode.MUL, p.op(Opcode.CELU, below, one), p.op(Opcode.EXP, p.op(Opcode.NEG, below)))
    return p.op(Opcode.ADD, p.op(Opcode.MAX, x[0], zero), p.op(Opcode.MUL, scale, powers))


for _function in pointwise_functions().values():
    if traits_of_operator(_function.operation).pointwise:
        _add(_function.operation, REALS, _with_parameters(_function.opcode))
for _names, _types, _opcode in (
    ("Neg", NUMBERS, Opcode.NEG), ("Abs", NUMBERS, Opcode.ABS), ("Sign", NUMBERS, Opcode.SIGN),
    ("Relu", NUMBERS, Opcode.RELU), ("IsNaN", REALS, Opcode.IS_NAN),
    ("Not", BOOLEANS, Opcode.NOT), ("BitwiseNot", INTEGERS, Opcode.BIT_NOT),
    ("Sub", NUMBERS, Opcode.SUB), ("Div", NUMBERS, Opcode.DIV),
    ("Equal", ALL, Opcode.EQUAL), ("Less", NUMBERS, Opcode.LESS), ("LessOrEqual", NUMBERS, Opcode.LESS_OR_EQUAL),
    ("And", BOOLEANS, Opcode.AND), ("Or", BOOLEANS, Opcode.OR), ("Xor", BOOLEANS, Opcode.XOR),
    ("BitwiseAnd", INTEGERS, Opcode.BIT_AND), ("BitwiseOr", INTEGERS, Opcode.BIT_OR),
    ("BitwiseXor", INTEGERS, Opcode.BIT_XOR), ("Where", ALL, Opcode.WHERE),
):  # fmt: skip
    _add(_names, _types, _plain(_opcode))
_add("Greater", NUMBERS, _swapped(Opcode.LESS))
_add("GreaterOrEqual", NUMBERS, _swapped(Opcode.LESS_OR_EQUAL))
_add("Add", NUMBERS, _plain(Opcode.ADD))
_add("Mul", NUMBERS, _plain(Opcode.MUL))
_add("Sum", NUMBERS, _chained(Opcode.ADD))
_add("Min", NUMBERS, _chained(Opcode.MIN))
_add("Max", NUMBERS, _chained(Opcode.MAX))
_add("Celu", REALS, _celu)


@_emits("Gelu", REALS)
def _gelu(p: ElementwiseProgram, spec: GeluSpec, x: Sequence[Value]) -> Value:
    return p.op(Opcode.GELU_TANH if spec.approximate == "tanh" else Opcode.GELU, *x)


@_emits("Mean", REALS)
def _mean(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    total = functools.reduce(functools.partial(p.op, Opcode.ADD), x)
    return p.op(Opcode.DIV, total, p.parameter(len(x), total))


@_emits("Mod", NUMBERS)
def _mod(p: ElementwiseProgram, spec: ModSpec, x: Sequence[Value]) -> Value:
    if spec.fmod or x[0].element_type in INTEGERS:
        return p.op(Opcode.FMOD if spec.fmod else Opcode.MOD, *x)
    # The sign of the divisor, also for 0.
    a, b = x
    zero, minus_zero = (p.constant(number, a.element_type) for number in (0.0, -0.0))
    rest, is_negative = p.op(Opcode.FMOD, a, b), p.op(Opcode.LESS, b, zero)
    differs = p.op(Opcode.XOR, p.op(Opcode.LESS, rest, zero), is_negative)
    moved = p.op(Opcode.WHERE, differs, p.op(Opcode.ADD, rest, b), rest)
    return p.op(Opcode.WHERE, p.op(Opcode.EQUAL, rest, zero), p.op(Opcode.WHERE, is_negative, minus_zero, zero), moved)


@_emits("BitShift", INTEGERS)
def _bit_shift(p: ElementwiseProgram, spec: BitShiftSpec, x: Sequence[Value]) -> Value:
    value, by = x
    if spec.direction == "LEFT":
        return p.op(Opcode.SHIFT_LEFT, value, by)
    kind = value.element_type
    if kind.is_signed:  # by more bits than there are, or by a negative number: 0 or -1
        most = p.constant(kind.bits - 1, kind)
        is_below = p.op(Opcode.LESS, by, p.constant(0, kind))
        by = p.op(Opcode.WHERE, is_below, most, p.op(Opcode.MIN, by, most))
    return p.op(Opcode.SHIFT_RIGHT, value, by)


@_emits("IsInf", REALS)
def _is_inf(p: ElementwiseProgram, spec: IsInfSpec, x: Sequence[Value]) -> Value:
    wanted = [Opcode.IS_POSITIVE_INF] * spec.detect_positive + [Opcode.IS_NEGATIVE_INF] * spec.detect_negative
    tests = [p.op(opcode, *x) for opcode in wanted]
    return functools.reduce(functools.partial(p.op, Opcode.OR), tests) if tests else p.constant(False, boolean)


@_emits("Cast", CONVERTIBLE)
def _cast(p: ElementwiseProgram, spec: ConversionSpec, x: Sequence[Value]) -> Value:
    source, target = x[0], spec.output().element_type
    if target is f8e8m0 and source.element_type is not target:
        return p.power_of_two(source, spec.round_mode, saturates=spec.saturate)
    if not spec.saturate or target not in SMALL_REALS or source.element_type is target:
        return p.cast(source, target)
    limits = target.finfo
    wide = source if source.element_type is f64 else p.cast(source, f32)
    low, high = (p.constant(float(limit), wide.element_type) for limit in (limits.min, limits.max))
    return p.cast(p.op(Opcode.CLIP, wide, low, high), target)


_add("CastLike", CONVERTIBLE, _cast)


@_emits("QuantizeLinear", {f32})
def _quantize(p: ElementwiseProgram, spec: QuantizeSpec, x: Sequence[Value]) -> Value:
    return p.quantize(x[0], x[1], x[2] if len(x) > 2 else p.constant(0, spec.output().element_type))


@_emits("DequantizeLinear", BYTES)
def _dequantize(p: ElementwiseProgram, spec: QuantizeSpec, x: Sequence[Value]) -> Value:
    return p.dequantize(x[0], x[1], x[2] if len(x) > 2 else p.constant(0, x[0].element_type))


@_emits("Clip", NUMBERS)
def _clip(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    # An omitted bound has no value, so the present ones are matched by position.
    bounds = list(x[1:])
    low = bounds.pop(0) if spec.input(1) is not None else None
    high = bounds.pop(0) if spec.input(2) is not None else None
    if low is not None and high is not None and _are_numbers(spec):
        return p.op(Opcode.CLIP, x[0], low, high)
    value = x[0] if low is None else p.op(Opcode.MAX, x[0], low)
    return value if high is None else p.op(Opcode.MIN, value, high)


def _are_numbers(spec: OperatorSpec) -> bool:
    """Whether no bound can be NaN, which `CLIP` would ignore: Min and Max have it for their result."""
    bounds = [spec.node.input_value(index) for index in (1, 2)]
    if not bounds[0].element_type.is_real:
        return True
    return all(isinstance(bound.node, Constant) and not np.isnan(bound.node.data).any() for bound in bounds)


@_emits("Pow", NUMBERS)
def _pow(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    base, exponent = x
    if base.element_type in REALS:
        return _real_pow(p, base, exponent)
    if exponent.element_type in REALS:
        power = p.op(Opcode.POW, p.cast(base, f64), p.cast(exponent, f64))
        return p.cast(power, base.element_type)
    return p.op(Opcode.POW, base, p.cast(exponent, base.element_type))


def _real_pow(p: ElementwiseProgram, base: Value, exponent: Value) -> Value:
    known = exponent.number
    if known == 2.0 or known == 3.0:
        square = p.op(Opcode.MUL, base, base)
        return square if known == 2.0 else p.op(Opcode.MUL, square, base)
    if known == -1.0:
        return p.op(Opcode.RECIPROCAL, base)
    if known == 0.5:  # unlike the square root, 0 for -0 and inf for -inf
        root = p.op(Opcode.ABS, p.op(Opcode.SQRT, base))
        infinity = p.constant(np.inf, base.element_type)
        return p.op(Opcode.WHERE, p.op(Opcode.IS_NEGATIVE_INF, base), infinity, root)
    return p.op(Opcode.POW, base, p.cast(exponent, base.element_type))
