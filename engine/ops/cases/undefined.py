"""The cases that ONNX leaves undefined, and the one answer of all devices: the cases, and the rows of
`docs/undefined.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import (
    f4e2m1,
    f8e4m3fn,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u32,
    u64,
)
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, filled
from engine.startup import dataclass

__all__ = ["CASES", "UNDEFINED", "Undefined", "is_undefined", "leaves_nan_undefined"]

NAN, INF = math.nan, math.inf
MAX_I32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Undefined:
    """A row of the table.

    Attributes:
        operators: as the page names them.
        what: the undefined case.
        answer: the results of devices.
        cases: examples, with their results.
    """

    operators: str
    what: str
    answer: str
    cases: tuple[tuple[OperatorCase, tuple[Any, ...]], ...]


def _f(*values: float, type: ElementType = f32) -> Data:
    return filled((len(values),), values, type)


def _at(*values: int, type: ElementType = i64) -> Data:
    return filled((len(values),), values, type)


def _example(name: str, inputs: Sequence[Data], *results: Any, **attributes: Any) -> tuple[OperatorCase, Any]:
    op_type, _, feature = name.partition("/")
    outputs = {"TopK": 2, "MaxPool": len(results)}.get(op_type)
    return case(f"{op_type}/undefined-{feature}", inputs, attributes, num_outputs=outputs), results


def _cast(source: ElementType, target: ElementType, values: Sequence[float], wanted: Sequence[Any]) -> Any:
    return _example(f"Cast/{source.name}-{target.name}", [_f(*values, type=source)], wanted, to=target)


def _image(**values: float) -> Data:
    """A map of one channel of 0..15, with some pixels replaced."""
    return filled((1, 1, 4, 4), [values.get(f"p{i}", float(i)) for i in range(16)])


_LARGE: Final = (NAN, INF, -INF, 3e38, -3e38, -0.9)
_ONE: Final = filled((1, 1), [1.0])

UNDEFINED: Final = (
    Undefined(
        operators="Cast, CastLike",
        what="a real number beyond the integer type; NaN",
        answer="the nearest integer of the type; 0",
        cases=(
            _cast(f32, i8, (*_LARGE, 300.7), [0, 127, -128, 127, -128, 0, 127]),
            _cast(f32, u8, (*_LARGE, -1.0), [0, 255, 0, 255, 0, 0, 0]),
            _cast(f32, i32, (*_LARGE, 2.0**31), [0, MAX_I32, -MAX_I32 - 1, MAX_I32, -MAX_I32 - 1, 0, MAX_I32]),
            _cast(f32, u32, (*_LARGE, 3e9), [0, 2**32 - 1, 0, 2**32 - 1, 0, 0, 3 * 10**9]),
            _cast(f32, i64, _LARGE, [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 0]),
            _cast(f64, u64, (NAN, 1e300, -1.0, 2.0**63), [0, 2**64 - 1, 0, 2**63]),
            _cast(f16, i16, (NAN, 65504.0, -INF), [0, 32767, -32768]),
        ),
    ),
    Undefined(
        operators="Cast, CastLike",
        what="a real number beyond an integer type of 4 or 2 bits",
        answer="the lowest bits of the integer of 32 bits",
        cases=(
            _cast(f32, i4, (*_LARGE, 9.5), [0, -1, 0, -1, 0, 0, -7]),
            _cast(f32, u2, (*_LARGE, 6.5), [0, 3, 0, 3, 0, 0, 2]),
            _cast(f32, u4, (NAN, 99.0, -1.0), [0, 3, 15]),
        ),
    ),
    Undefined(
        operators="Cast, CastLike",
        what="a negative number, or -0, to float8e8m0",
        answer="as its magnitude",
        cases=(_cast(f32, f8e8m0, (-2.0, -3.0, -0.0, -INF), [2.0, 4.0, 2.0**-127, 2.0**127]),),
    ),
    Undefined(
        operators="Cast, CastLike",
        what="NaN to float4e2m1",
        answer="-0",
        cases=(
            _cast(f32, f4e2m1, (NAN, -NAN, 1.0), [-0.0, -0.0, 1.0]),
            _cast(f8e4m3fn, f4e2m1, (NAN, -NAN, 1.0), [-0.0, -0.0, 1.0]),
        ),
    ),
    Undefined(
        operators="Cast, CastLike",
        what="to the type that the numbers already have",
        answer="they are unchanged, also infinities of float8e5m2 if `saturate` is 1",
        cases=(_cast(f8e5m2, f8e5m2, (INF, -INF, NAN), [INF, -INF, NAN]),),
    ),
    Undefined(
        operators="Add, Sub, Mul, Sum, Neg, Abs, CumSum, ReduceSum, ReduceProd, MatMul and others",
        what="a result beyond the integer type",
        answer="its lowest bits (it wraps around)",
        cases=(
            _example("Add/wraps", [_at(127, type=i8), _at(1, type=i8)], [-128]),
            _example("Mul/wraps", [_at(2**30, type=i32), _at(6, type=i32)], [-(2**31)]),
            _example("Neg/wraps", [_at(-(2**31), type=i32)], [-(2**31)]),
            _example("Abs/wraps", [_at(-(2**63), 5)], [-(2**63), 5]),
            _example("CumSum/wraps", [_at(MAX_I32, 1, type=i32), constant(0)], [MAX_I32, -MAX_I32 - 1]),
            _example("ReduceSum/wraps", [_at(MAX_I32, MAX_I32, type=i32)], [-2], keepdims=1),
        ),
    ),
    Undefined(
        operators="ReduceMean",
        what="of integers",
        answer="the sum in 64 bits, divided, without its fraction",
        cases=(
            _example("ReduceMean/of-large-integers", [_at(MAX_I32, MAX_I32, type=i32)], [MAX_I32], keepdims=1),
            _example("ReduceMean/of-negative-integers", [_at(-3, -4, type=i32)], [-3], keepdims=1),
        ),
    ),
    Undefined(
        operators="Div, Mod",
        what="integers divided by zero; the least integer divided by -1",
        answer="0; the least integer, with the rest 0",
        cases=tuple(
            _example(f"{op}/{kind.name}-by-zero-{suffix}", [_at(7, least, least, type=kind), _at(0, 0, by, type=kind)],
                     [0, 0, least if op == "Div" and least else 0], **attributes)
            for kind, least, by in ((i32, -(2**31), -1), (i64, -(2**63), -1), (u8, 0, 3))
            for op, suffix, attributes in (("Div", "", {}), ("Mod", "", {}), ("Mod", "fmod", {"fmod": 1}))
        ),
    ),
    Undefined(
        operators="BitShift",
        what="by the number of bits, or more",
        answer="0",
        cases=tuple(
            _example(f"BitShift/{kind.name}-{direction}", [_at(255, 1, type=kind), _at(bits, bits + 1, type=kind)],
                     [0, 0], direction=direction)
            for kind, bits in ((u8, 8), (u32, 32), (u64, 64))
            for direction in ("LEFT", "RIGHT")
        ),
    ),
    Undefined(
        operators="Pow",
        what="an integer to a negative power; to a real power",
        answer="0, 1 or -1, without the fraction; computed as real numbers and converted as by Cast",
        cases=(
            _example("Pow/negative", [_at(2, 0, -1, 1, type=i32), _at(-1, -1, -3, -2, type=i32)], [0, 0, -1, 1]),
            _example("Pow/of-integers", [_at(2, -2, 0, 2, 3, type=i32), _f(-1.0, 0.5, -1.0, 40.0, NAN)],
                     [0, 0, MAX_I32, MAX_I32, 0]),
        ),
    ),
    Undefined(
        operators="Clip",
        what="a bound that is NaN",
        answer="NaN, as of Min and Max",
        cases=(
            _example("Clip/low", [_f(-2.0, NAN), filled((), [NAN]), filled((), [1.0])], [NAN, NAN]),
            _example("Clip/high", [_f(-2.0, NAN), filled((), [-1.0]), filled((), [NAN])], [NAN, NAN]),
            _example("Clip/constant", [_f(-2.0, 2.0), constant(filled((), [NAN])), constant(1.0)], [NAN, NAN]),
        ),
    ),
    Undefined(
        operators="Max, Min, ReduceMax, ReduceMin, MaxPool, GlobalMaxPool, RoiAlign, ScatterElements, ScatterND",
        what="NaN among numbers",
        answer="NaN; the index of the first NaN",
        cases=(
            _example("Max/nan", [_f(1.0, NAN), _f(NAN, 1.0)], [NAN, NAN]),
            _example("Min/nan", [_f(1.0, NAN), _f(NAN, 1.0)], [NAN, NAN]),
            _example("ReduceMax/nan", [_f(1.0, NAN, INF)], [NAN]),
            _example("ReduceMin/nan", [_f(1.0, NAN, -INF)], [NAN]),
            _example("MaxPool/nan", [filled((1, 1, 4), [5.0, NAN, NAN, 9.0])], [[[NAN, NAN, NAN]]], [[[1, 1, 2]]],
                     kernel_shape=[2]),
            _example("RoiAlign/nan", [_image(p5=NAN), filled((1, 4), [0.0, 0.0, 3.0, 3.0]), constant([0])],
                     [[[[NAN, NAN], [NAN, NAN]]]], mode="max", output_height=2, output_width=2),
            _example("ScatterElements/nan", [_f(1.0, NAN), _at(0, 1), _f(NAN, 1.0)], [NAN, NAN], reduction="max"),
            _example("ScatterND/nan", [_f(1.0, NAN), filled((2, 1), [0, 1], i64), _f(NAN, 1.0)], [NAN, NAN],
                     reduction="min"),
        ),
    ),
    Undefined(
        operators="ArgMax, ArgMin, Hardmax, TopK",
        what="NaN among numbers",
        answer="ArgMax and ArgMin choose it; Hardmax and TopK count it as the largest",
        cases=(
            _example("ArgMax/nan", [_f(1.0, NAN, 2.0, NAN, INF)], [1]),
            _example("ArgMin/nan", [_f(1.0, NAN, 2.0, NAN, -INF)], [1]),
            _example("Hardmax/nan", [_f(1.0, NAN, INF)], [0.0, 1.0, 0.0]),
            _example("TopK/nan", [_f(1.0, NAN, 2.0, INF), constant([3])], [NAN, INF, 2.0], [1, 3, 2]),
            _example("TopK/nan-smallest", [_f(1.0, NAN, 2.0), constant([3])], [1.0, 2.0, NAN], [0, 2, 1], largest=0),
        ),
    ),
    Undefined(
        operators="ScatterElements, ScatterND",
        what="one index several times, without a reduction",
        answer="the last update",
        cases=(
            _example("ScatterElements/twice", [_f(0.0, 0.0), _at(0, 0), _f(1.0, 2.0)], [2.0, 0.0]),
            _example("ScatterND/twice", [_f(0.0, 0.0), filled((2, 1), [0], i64), _f(1.0, 2.0)], [2.0, 0.0]),
        ),
    ),
    Undefined(
        operators="QuantizeLinear",
        what="NaN",
        answer="the zero point",
        cases=(
            _example("QuantizeLinear/nan", [_f(NAN, INF, -INF), constant(1.0), constant(filled((), [3], u8))],
                     [3, 255, 0]),
        ),
    ),
    Undefined(
        operators="GridSample, RoiAlign, MaxRoiPool",
        what="a coordinate that is NaN or infinite",
        answer="NaN",
        cases=(
            _example("GridSample/not-finite",
                     [_image(), filled((1, 1, 4, 2), [0.0, 0.0, NAN, 0.0, INF, 0.0, 0.0, -INF])],
                     [[[[7.5, NAN, NAN, NAN]]]], mode="linear"),
            _example("RoiAlign/not-finite", [_image(), filled((2, 4), [0.0, 0.0, NAN, 3.0, 0.0, 0.0, INF, 3.0]),
                     constant([0, 0])], [[[[NAN]]], [[[NAN]]]]),
            _example("MaxRoiPool/not-finite", [_image(), filled((1, 5), [0.0, 0.0, 0.0, NAN, 3.0])], [[[[NAN]]]],
                     pooled_shape=[1, 1]),
        ),
    ),
    Undefined(
        operators="Gemm",
        what="NaN or infinity in C if beta is 0",
        answer="NaN, by the formula",
        cases=(
            _example("Gemm/no-part-of-c", [_ONE, filled((1, 2), [1.0]), filled((1, 2), [NAN, INF])], [[NAN, NAN]],
                     beta=0.0),
        ),
    ),
    Undefined(
        operators="Unique",
        what="NaN; -0 and 0",
        answer="each NaN is equal to the others, and last; the zeros are equal",
        cases=(_example("Unique/nan", [_f(NAN, 1.0, NAN, 0.0)], [0.0, 1.0, NAN]),),
    ),
    Undefined(
        operators="NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss",
        what="a label below 0 that is not ignored; a mean of no labels",
        answer="the label counts from the end, as an index does; NaN",
        cases=(
            _example("NegativeLogLikelihoodLoss/label", [filled((1, 3), [1.0, 2.0, 4.0]), _at(-2)], -2.0),
            _example("NegativeLogLikelihoodLoss/ignored", [filled((1, 3), [1.0, 2.0, 4.0]), _at(-2)], NAN,
                     ignore_index=-2),
            _example("SoftmaxCrossEntropyLoss/label", [filled((1, 2), [0.0, -200.0]), _at(-1)], 200.0),
        ),
    ),
    Undefined(
        operators="BlackmanWindow, HammingWindow, HannWindow",
        what="a symmetric window of length 1",
        answer="NaN, by the formula",
        cases=tuple(
            _example(f"{op}/one", [constant(1)], [NAN], periodic=0)
            for op in ("BlackmanWindow", "HammingWindow", "HannWindow")
        ),
    ),
)  # fmt: skip

CASES: Final = [each for row in UNDEFINED for each, _ in row.cases]

_WITHOUT_NAN: Final = frozenset({
    "ArgMax", "ArgMin", "Clip", "GlobalMaxPool", "GridSample", "Hardmax", "Max", "MaxPool", "MaxRoiPool", "Min",
    "QuantizeLinear", "ReduceMax", "ReduceMin", "RoiAlign", "ScatterElements", "ScatterND", "Sign", "TopK", "Unique",
})  # fmt: skip
"""Operators whose text does not say what they do with NaN."""


def leaves_nan_undefined(op_type: str) -> bool:
    """Whether the text of an operator does not say what it does with NaN."""
    return op_type in _WITHOUT_NAN


def is_undefined(tested: OperatorCase) -> bool:
    """Whether ONNX leaves a result of a case undefined: it is one of `CASES`, or has values as these have."""
    if "/undefined-" in tested.name:
        return True
    first = tested.arrays()[0]
    if first is None or not ElementType.from_numpy(first.dtype).is_real:
        return False
    node, _ = tested.node()
    target = node.output(0).element_type
    numbers = first.astype(np.float64)
    if tested.op_type in ("Cast", "CastLike") and target.is_integral:
        low, high = (-(2 ** (target.bits - 1)), 2 ** (target.bits - 1)) if target.is_signed else (0, 2**target.bits)
        return not bool(np.all((numbers > low - 1) & (numbers < high)))
    if tested.op_type in ("Cast", "CastLike") and target is f8e8m0:
        return bool(np.any(np.signbit(numbers)))
    if tested.op_type == "LayerNormalization" and target is f64:
        return True  # by default, stash_type permits f32 inside
    return tested.op_type in _WITHOUT_NAN and bool(np.isnan(numbers).any())
