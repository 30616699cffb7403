"""Cases of quantization: per tensor, per axis and in blocks, and its inverse."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import f32, i8, i32, u8
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
    case("DynamicQuantizeLinear/f32", [real(3, 50, low=-3, high=9)], num_outputs=3, steps=1),
]  # fmt: skip
