"""Cases of indexing operators: Gather, Scatter and their variants, OneHot, ReverseSequence, TensorScatter."""

from __future__ import annotations

import itertools
from typing import Final

from engine.ir.element_type import boolean, f16, f32, i8, i32, i64, u8
from engine.ops.cases.case import case
from engine.ops.cases.data import Data, constant, filled, real, whole

_REDUCTIONS: Final = ("none", "add", "mul", "max", "min")

CASES: Final = [
    *(
        case(f"Gather/axis={axis}-{type.name}", [Data((5, 6, 7), type), whole(2, 3, type=i64, low=-5, high=5)],
             {"axis": axis})
        for axis in (0, 1, -1)
        for type in (f32, i8, f16, i64, boolean)
    ),
    case("Gather/i32-indices", [real(9, 4), whole(6, type=i32, low=-9, high=9)]),
    case("Gather/scalar", [real(9, 4), constant(-2)]),
    case("Gather/rows", [constant(real(500, 64)), whole(1, 40, low=0, high=500)]),
    case("Gather/none", [real(9, 4), whole(0, low=0, high=9)]),
    *(
        case(f"GatherElements/axis={axis}", [real(5, 6, 7), whole(4, 5, 5, low=-5, high=5)], {"axis": axis})
        for axis in (0, 1, 2)
    ),
    case("GatherND/pairs", [real(5, 6, 7), whole(4, 3, 2, low=-5, high=5)]),
    case("GatherND/batch", [real(3, 6, 7), whole(3, 4, 1, low=0, high=6)], {"batch_dims": 1}),
    *(
        case(f"ScatterElements/{reduction}-axis={axis}", [
            real(5, 6), filled((3, 2), (1, 4, 0, 2, 3, 0), i64), real(3, 2)], {"axis": axis, "reduction": reduction},
            terms=4, factors=(0, 2))
        for reduction in _REDUCTIONS
        for axis in (0, 1)
    ),
    *(
        case(f"ScatterND/{reduction}", [real(5, 6, 2), filled((3, 1), (4, -5, 2), i64), real(3, 6, 2)],
             {"reduction": reduction}, terms=4, factors=(0, 2))
        for reduction in _REDUCTIONS
    ),
    *(
        case(f"OneHot/axis={axis}", [whole(3, 4, low=-6, high=6), constant(6), constant([2, 5], i32)], {"axis": axis})
        for axis in (0, 1, -1)
    ),
    *(
        case(f"OneHot/deep-{type.name}", [filled((5,), (0, 1, 43, 127, 126), type), constant(300),
             constant([0.0, 1.0], f32)])
        for type in (u8, i8)
    ),
    *(
        case(f"ReverseSequence/time={time}-{type.name}", [Data((4, 3, 5) if time == 0 else (3, 4, 5), type),
             filled((3,), (4, 0, 3), i64)], {"time_axis": time, "batch_axis": 1 - time})
        for time, type in itertools.product((0, 1), (f32, i64, boolean))
    ),
    *(
        case(f"TensorScatter/{mode}-axis={axis}{'' if starts is None else '-started'}", [
            real(2, 5, 5, 3), real(2, 2, 5, 3) if axis == 1 else real(2, 5, 2, 3),
            *([] if starts is None else [filled((2,), starts, i64)]),
        ], {"mode": mode, "axis": axis})
        for mode, starts in (("linear", (0, 3)), ("circular", (4, 2)), ("linear", None))
        for axis in (1, -2)
    ),
]  # fmt: skip
