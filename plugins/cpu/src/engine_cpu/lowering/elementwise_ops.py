"""Elementwise operators as instructions: the element types of each, and its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from engine.ops.activations import ActivationSpec, GeluSpec
from engine.ops.elementwise import BitShiftSpec, IsInfSpec, ModSpec
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.elementwise_program import ElementwiseProgram, Opcode, Value

REALS: Final = frozenset({f32, f64, f16, bf16})
UNSIGNED: Final = frozenset({u8, u16, u32, u64})
INTEGERS: Final = UNSIGNED | {i8, i16, i32, i64}
NUMBERS: Final = REALS | INTEGERS
ALL: Final = NUMBERS | {boolean}
BOOLEANS: Final = frozenset({boolean})

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
    """Of any number of inputs."""
    return lambda p, spec, x: functools.reduce(functools.partial(p.op, opcode), x)


def _with_parameters(opcode: Opcode) -> Emit:
    """The instruction on the input and the parameters of an activation."""

    def emit(p: ElementwiseProgram, spec: ActivationSpec, x: Sequence[Value]) -> Value:
        # Attributes are f32, even of f64 nodes.
        numbers = [float(np.float32(number)) for number in spec.parameters]
        return p.op(opcode, x[0], *(p.parameter(number, x[0]) for number in numbers))

    return emit


for _names, _types, _opcode in (
    ("Neg", NUMBERS, Opcode.NEG), ("Abs", NUMBERS, Opcode.ABS), ("Sign", NUMBERS, Opcode.SIGN),
    ("Relu", NUMBERS, Opcode.RELU), ("Sqrt", REALS, Opcode.SQRT), ("Reciprocal", REALS, Opcode.RECIPROCAL),
    ("Exp", REALS, Opcode.EXP), ("Log", REALS, Opcode.LOG), ("Erf", REALS, Opcode.ERF),
    ("Tanh", REALS, Opcode.TANH), ("Sigmoid", REALS, Opcode.SIGMOID), ("Softplus", REALS, Opcode.SOFTPLUS),
    ("Softsign", REALS, Opcode.SOFTSIGN), ("Mish", REALS, Opcode.MISH), ("HardSwish", REALS, Opcode.HARD_SWISH),
    ("Floor", REALS, Opcode.FLOOR), ("Ceil", REALS, Opcode.CEIL), ("Round", REALS, Opcode.ROUND),
    ("Sin", REALS, Opcode.SIN), ("Cos", REALS, Opcode.COS), ("Tan", REALS, Opcode.TAN),
    ("Asin", REALS, Opcode.ASIN), ("Acos", REALS, Opcode.ACOS), ("Atan", REALS, Opcode.ATAN),
    ("Sinh", REALS, Opcode.SINH), ("Cosh", REALS, Opcode.COSH), ("Asinh", REALS, Opcode.ASINH),
    ("Acosh", REALS, Opcode.ACOSH), ("Atanh", REALS, Opcode.ATANH), ("IsNaN", REALS, Opcode.IS_NAN),
    ("Not", BOOLEANS, Opcode.NOT), ("BitwiseNot", INTEGERS, Opcode.BIT_NOT),
    ("Sub", NUMBERS, Opcode.SUB), ("Div", NUMBERS, Opcode.DIV), ("PRelu", REALS, Opcode.PRELU),
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
_add("LeakyRelu", REALS, _with_parameters(Opcode.PRELU))
_add("Elu", REALS, _with_parameters(Opcode.ELU))
_add("Celu", REALS, _with_parameters(Opcode.CELU))
_add("ThresholdedRelu", REALS, _with_parameters(Opcode.THRESHOLDED_RELU))
_add("Swish", REALS, _with_parameters(Opcode.SWISH))
_add("Selu", REALS, _with_parameters(Opcode.SELU))
_add("HardSigmoid", REALS, _with_parameters(Opcode.HARD_SIGMOID))
_add("Shrink", REALS, _with_parameters(Opcode.SHRINK))


@_emits("Gelu", REALS)
def _gelu(p: ElementwiseProgram, spec: GeluSpec, x: Sequence[Value]) -> Value:
    return p.op(Opcode.GELU_TANH if spec.approximate == "tanh" else Opcode.GELU, *x)


@_emits("Mean", REALS)
def _mean(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    total = functools.reduce(functools.partial(p.op, Opcode.ADD), x)
    return p.op(Opcode.DIV, total, p.parameter(len(x), total))


@_emits("Mod", NUMBERS)
def _mod(p: ElementwiseProgram, spec: ModSpec, x: Sequence[Value]) -> Value:
    return p.op(Opcode.FMOD if spec.fmod else Opcode.MOD, *x)


@_emits("BitShift", UNSIGNED)
def _bit_shift(p: ElementwiseProgram, spec: BitShiftSpec, x: Sequence[Value]) -> Value:
    return p.op(Opcode.SHIFT_LEFT if spec.direction == "LEFT" else Opcode.SHIFT_RIGHT, *x)


@_emits("IsInf", REALS)
def _is_inf(p: ElementwiseProgram, spec: IsInfSpec, x: Sequence[Value]) -> Value:
    wanted = [Opcode.IS_POSITIVE_INF] * spec.detect_positive + [Opcode.IS_NEGATIVE_INF] * spec.detect_negative
    tests = [p.op(opcode, *x) for opcode in wanted]
    return functools.reduce(functools.partial(p.op, Opcode.OR), tests) if tests else p.constant(False, boolean)


@_emits("Cast", ALL)
def _cast(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    return p.cast(x[0], spec.output().element_type)


_add("CastLike", ALL, _cast)


@_emits("Clip", NUMBERS)
def _clip(p: ElementwiseProgram, spec: OperatorSpec, x: Sequence[Value]) -> Value:
    # An omitted bound has no value, so the present ones are matched by position.
    bounds = list(x[1:])
    low = bounds.pop(0) if spec.input(1) is not None else None
    high = bounds.pop(0) if spec.input(2) is not None else None
    if low is not None and high is not None:
        return p.op(Opcode.CLIP, x[0], low, high)
    value = x[0] if low is None else p.op(Opcode.MAX, x[0], low)
    return value if high is None else p.op(Opcode.MIN, value, high)


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
