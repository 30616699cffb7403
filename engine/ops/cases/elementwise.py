"""Cases of elementwise operators: every type, limits, broadcasts, casts."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import (
    bf16,
    boolean,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import SPECIAL, Data, bools, constant, filled, limits, pairs, real, whole
from engine.ops.registry import get_op

_TYPES: Final = (f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64, boolean)
_CAST_TYPES: Final = (f32, f64, i8, u8, i16, u16, i32, u32, i64, u64, boolean, f16, bf16)
_ANY: Final = (-2.0, 2.0)
_UNARY: Final = {
    **dict.fromkeys(
        ("Neg", "Abs", "Sign", "Relu", "Exp", "Erf", "Tanh", "Sigmoid", "Softplus", "Softsign", "Mish", "HardSwish",
         "Floor", "Ceil", "Round", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "IsNaN", "Not", "BitwiseNot"),
        _ANY,
    ),
    "Sqrt": (0.0, 9.0), "Log": (0.1, 9.0), "Reciprocal": (0.1, 9.0), "Acosh": (1.0, 9.0),
    "Asin": (-1.0, 1.0), "Acos": (-1.0, 1.0), "Atanh": (-0.9, 0.9),
}  # fmt: skip
_BINARY: Final = (
    "Add", "Sub", "Mul", "Div", "PRelu", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or",
    "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)  # fmt: skip
_VARIADIC: Final = ("Sum", "Mean", "Max", "Min")
_ATTRIBUTES: Final[dict[str, list[dict[str, Any]]]] = {
    "Gelu": [{"approximate": "tanh"}, {"approximate": "none"}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_positive": 0, "detect_negative": 0}],
    "LeakyRelu": [{"alpha": 0.3}],
    "Elu": [{}, {"alpha": 0.7}],
    "Celu": [{"alpha": 1.3}, {"alpha": -0.7}],
    "Swish": [{"alpha": 1.7}],
    "Selu": [{}, {"alpha": 1.1, "gamma": 0.9}],
    "HardSigmoid": [{"alpha": 0.3, "beta": 0.4}],
    "ThresholdedRelu": [{"alpha": 0.4}],
    "Shrink": [{"lambd": 0.3, "bias": 0.2}],
}
_AT_EDGES: Final = (
    "Abs", "Neg", "Sign", "Round", "Floor", "Ceil", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Erf", "Softplus",
    "Selu", "Celu", "Elu", "LeakyRelu", "HardSigmoid", "IsNaN", "IsInf", "Reciprocal", "Sin", "Cos", "Tan", "Asin",
    "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
)  # fmt: skip
_PAIRS_AT_EDGES: Final = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "Equal", "PRelu",
)  # fmt: skip
_INTEGER_PAIRS: Final = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Max",
    "Min",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "Equal",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)


def _data(type: ElementType, *shape: int, low: float = -2.0, high: float = 2.0) -> Data:
    if type is boolean:
        return bools(*shape)
    return real(*shape, type=type, low=low, high=high) if type.is_real else whole(*shape, type=type)


def _types_of(op_type: str, index: int = 0) -> list[ElementType]:
    return [type for type in _TYPES if type in get_op(op_type).inputs[index].elements]


def _of_each_type() -> list[OperatorCase]:
    cases = []
    for op_type, (low, high) in _UNARY.items():
        for type in _types_of(op_type):
            cases.append(case(f"{op_type}/{type.name}", [_data(type, 3, 50, low=low, high=high)]))
    for op_type, options in _ATTRIBUTES.items():
        for attributes in options:
            text = "-".join(f"{key}={value}" for key, value in attributes.items()) or "defaults"
            for type in _types_of(op_type):
                # Near their zeros, results are differences of numbers as large as the largest result.
                cases.append(case(f"{op_type}/{text}-{type.name}", [_data(type, 3, 50)], attributes, terms=4))
    for op_type in _BINARY:
        for type in _types_of(op_type):
            low = 0.1 if op_type == "Div" else -2.0
            second = _data(type, 50, low=low)
            if op_type == "Div" and type.is_integral:
                second = whole(50, type=type, low=1, high=9)
            cases.append(case(f"{op_type}/{type.name}", [_data(type, 3, 50), second]))
    for op_type in _VARIADIC:
        for type in _types_of(op_type):
            terms = 3 if op_type in ("Sum", "Mean") else 1
            data = [_data(type, 3, 50), _data(type, 50), _data(type, 3, 1)]
            cases.append(case(f"{op_type}/{type.name}", data, terms=terms, factors=(0,) if terms > 1 else ()))
    for type in _types_of("Where", 1):
        cases.append(case(f"Where/{type.name}", [bools(3, 50), _data(type, 50), _data(type, 3, 1)]))
    for type in _types_of("Clip"):
        low, high = (-0.5, 0.75) if type.is_real else (3, 40)
        cases.append(case(f"Clip/{type.name}", [_data(type, 3, 50), constant(low, type), constant(high, type)]))
        cases.append(case(f"Clip/crossed-{type.name}", [_data(type, 90), constant(high, type), constant(low, type)]))
    for type in _types_of("Mod"):
        for fmod in (0, 1) if type.is_integral else (1,):
            second = whole(50, type=type, low=1, high=9) if type.is_integral else real(50, type=type, low=0.1)
            cases.append(case(f"Mod/fmod={fmod}-{type.name}", [_data(type, 3, 50), second], {"fmod": fmod}))
    for type, direction in itertools.product((u8, u16, u32, u64), ("LEFT", "RIGHT")):
        data = [whole(3, 50, type=type), whole(50, type=type, low=0, high=9)]
        cases.append(case(f"BitShift/{direction}-{type.name}", data, {"direction": direction}))
    return cases


def _powers() -> list[OperatorCase]:
    cases = []
    for base, exponent in (
        (f32, f32),
        (f64, f64),
        (f16, f16),
        (f32, i64),
        (i32, f32),
        (i64, i32),
        (f64, f32),
        (i32, i32),
    ):
        first = real(40, type=base, low=0.1, high=9.0) if base.is_real else whole(40, type=base, low=1, high=10)
        second = real(40, type=exponent) if exponent.is_real else whole(40, type=exponent, low=0, high=3)
        # A power is exp(y log x): the rounding of y log x, which is at most 5, is an absolute error.
        cases.append(case(f"Pow/{base.name}-{exponent.name}", [first, second], terms=8, steps=0 if base.is_real else 1))
    for number in (2.0, 3.0, 0.5, -1.0, -2.0, 0.0):
        cases.append(case(f"Pow/constant-{number}", [real(90, low=0.0, high=9.0), constant(number)], terms=4))
    for type in (i32, i64):
        exponents = filled((5, 1), (0.5, 1.0, 0.0, -1.0, 1.5))
        cases.append(case(f"Pow/roots-of-squares-{type.name}", [filled((6,), (1, 4, 9, 25, 81, 121), type), exponents]))
    return cases


def _at_edges() -> list[OperatorCase]:
    cases = [
        case(f"{op_type}/edges-{type.name}", [filled((2, 14), limits(type), type)])
        for op_type in _AT_EDGES
        for type in (f32, f16)
        if type in _types_of(op_type)
    ]
    cases += [case(f"{op_type}/edges-pairs", pairs(f32)) for op_type in _PAIRS_AT_EDGES]
    for op_type, type in itertools.product(_INTEGER_PAIRS, (i32, i64, i8, u8)):
        divisors = [value or 5 for value in limits(type)]
        cases.append(case(f"{op_type}/edges-pairs-{type.name}", pairs(type, right=divisors)))
    return cases


def _casts() -> list[OperatorCase]:
    cases = []
    for source, target in itertools.product(_CAST_TYPES, _CAST_TYPES):
        # ONNX does not define the result for a number out of the target's range.
        is_unsigned = target.is_integral and not target.is_signed
        data = _data(source, 300, low=0.0 if is_unsigned or target is boolean else -100.0, high=100.0)
        if is_unsigned and not source.is_real:
            data = whole(300, type=source, low=0) if source is not boolean else bools(300)
        cases.append(case(f"Cast/{source.name}-{target.name}", [data], {"to": target}))
    cases.append(case("CastLike/f32-i64", [real(300, low=-100, high=100), constant([1, 2], i64)]))
    return cases


def _small_casts() -> list[OperatorCase]:
    """Integers keep the low bits of a number out of range."""
    cases = []
    numbers = tuple(np.linspace(-20, 20, 91))
    for small in (i2, u2, i4, u4, f4e2m1, f6e2m3, f6e3m2, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0):
        values = numbers + SPECIAL * small.is_real
        for wide in (f32, f16, i32, boolean):
            cases.append(case(f"Cast/{small.name}-{wide.name}", [filled((200,), numbers, small)], {"to": wide}))
            given = [filled((200,), values if wide.is_real else range(-40, 40), wide)]
            cases.append(case(f"Cast/{wide.name}-{small.name}", given, {"to": small}))
        if small not in (f6e2m3, f6e3m2):
            cases.append(case(f"CastLike/{small.name}", [filled((200,), numbers), filled((2,), (0, 1), small)]))
    for small in (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz):
        given, attributes = [filled((200,), (*SPECIAL, *numbers, 250, 470, 60000))], {"to": small, "saturate": 0}
        cases.append(case(f"Cast/{small.name}-unsaturated", given, attributes))
    # Exponents at both ends of the range, ties, and numbers beyond all powers of two.
    ends = (
        *SPECIAL,
        0.0,
        -0.0,
        2.0**-149,
        2.0**-128,
        1.5 * 2.0**-127,
        2.0**-126,
        1.5 * 2.0**-126,
        3.4e38,
        2.9e38,
        -1.5,
    )
    for mode, saturate in itertools.product(("up", "down", "nearest"), (0, 1)):
        attributes = {"to": f8e8m0, "round_mode": mode, "saturate": saturate}
        cases.append(
            case(f"Cast/f8e8m0-{mode}-{saturate}", [filled((200,), (*ends, *numbers, *range(1, 90)))], attributes)
        )
        cases.append(
            case(f"Cast/f16-f8e8m0-{mode}-{saturate}", [filled((200,), (*numbers, 2.0**-24), f16)], attributes)
        )
    whole = (0, 1, 3, 7, 100)
    cases += [
        case(f"Cast/{source.name}-f8e8m0-unsaturated", [filled((5,), whole, source)], {"to": f8e8m0, "saturate": 0})
        for source in (i32, u8)
    ]
    cases += [
        case(f"Cast/{source.name}-{target.name}-bits", [filled((5,), (0, 1, 2, 1, 0), source)], {"to": target})
        for source, target in ((i4, u4), (u4, i4), (i4, u2))
    ]
    cases.append(case("Cast/f8e8m0-f4e2m1-powers", [filled((4,), (0.5, 1.0, 2.0, 4.0), f8e8m0)], {"to": f4e2m1}))
    return cases


_BROADCASTS: Final[list[list[tuple[int, ...]]]] = [
    [(), ()], [(4, 1, 6), (5, 1)], [(0, 3), (1, 3)], [(2, 3, 4, 5), (3, 1, 1)], [(7, 300), (300,), (7, 1)],
    [(2, 1, 9, 9), (1, 4, 1, 9), (1,)], [(1, 1, 1), (1,)], [(2, 2, 2, 2, 2, 2, 2, 2), (2, 1, 2, 1, 2, 1, 2)],
    [(3, 70001), (70001,)],
]  # fmt: skip

CASES: Final = [
    *_of_each_type(),
    *_powers(),
    *_at_edges(),
    *_casts(),
    *_small_casts(),
    *(
        case(f"Sum/broadcast-{'-'.join('x'.join(map(str, s)) or 'scalar' for s in shapes)}",
             [real(*shape) for shape in shapes], terms=3, factors=(0,))
        for shapes in _BROADCASTS
    ),
    case("Clip/no-lower-bound", [real(100), None, constant(1.0)]),
    case("Clip/no-upper-bound", [real(100), constant(-1.0)]),
    case("Clip/no-bounds", [filled((20,), limits(f32))]),
    case("Clip/computed-bounds", [real(3, 50), filled((), (-0.5,)), filled((), (0.75,))]),
    case("Add/dynamic", [real(3, 50), real(50)], is_dynamic=True),
]  # fmt: skip
