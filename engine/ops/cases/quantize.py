"""Cases of quantization: per tensor, per axis and in blocks, and its inverse."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import (
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f32,
    i2,
    i4,
    i8,
    i32,
    u2,
    u4,
    u8,
)
from engine.ops.cases.case import case
from engine.ops.cases.data import constant, filled, limits, real, whole

CASES: Final = [
    # The quotient is rounded before it is rounded to an integer: near halves, two correct results may differ by one.
    *(
        case(f"QuantizeLinear/{type.name}", [real(3, 5, 40, low=-9, high=9), constant(0.043), constant(3, type)],
             steps=1)
        for type in (u8, i8)
    ),
    *(
        case(f"QuantizeLinear/axis={axis}-{type.name}", [
            real(3, 5, 40, low=-9, high=9), constant(real(length, low=0.02, high=0.1)),
            constant(whole(length, type=type, low=0, high=9))], {"axis": axis}, steps=1)
        for type in (u8, i8)
        for axis, length in ((0, 3), (1, 5), (-1, 40))
    ),
    case("QuantizeLinear/saturated", [filled((10,), limits(f32)[1:]), constant(1.0), constant(0, i8)]),
    *(
        case(f"DequantizeLinear/{type.name}", [whole(3, 5, 40, type=type), constant(0.043), constant(3, type)])
        for type in (u8, i8)
    ),
    case("DequantizeLinear/i32", [whole(3, 40, type=i32), constant(0.043)]),
    *(
        case(f"DequantizeLinear/axis={axis}", [
            whole(3, 5, 40, type=i8), constant(real(length, low=0.02, high=0.1)),
            constant(whole(length, type=i8, low=0, high=9))], {"axis": axis})
        for axis, length in ((0, 3), (1, 5), (-1, 40))
    ),
    case("DequantizeLinear/blocks", [whole(4, 40, type=i8), constant(real(4, 5, low=0.02, high=0.1)),
         constant(whole(4, 5, type=i8, low=0, high=9))], {"axis": 1, "block_size": 8}),
    *(
        case(f"{op_type}/{type.name}-{name}", [given, scales, *([zeros] if zeros else [])],
             {"axis": axis} | ({"output_dtype": type} if op_type == "QuantizeLinear" and not zeros else {}))
        for type in (i2, u2, i4, u4, f4e2m1, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz)
        for op_type, given in (
            ("QuantizeLinear", filled((3, 5, 40), (*range(-30, 30), 0.3, -0.7, 1e6, -1e6))),
            ("DequantizeLinear", filled((3, 5, 40), (*range(-8, 8), 0.5, -1.5), type)))
        for name, scales, zeros, axis in (
            ("one", constant(0.25), None, 1),
            ("zero", constant(0.25), constant(1 if type.is_integral else 0, type), 1),
            ("columns", constant([0.5, 0.25, 2, 4, 8], f32), constant([0] * 5, type), 1))
    ),
    case("DequantizeLinear/powers-of-two", [
         filled((4, 40), (*range(-8, 8),), f8e4m3fn), constant([1, 2, 0.5, 4], f8e8m0)],
         {"axis": 0, "output_dtype": f32}),
    case("DynamicQuantizeLinear/f32", [real(3, 50, low=-3, high=9)], num_outputs=3, steps=1),
]  # fmt: skip
