"""Cases of operators that select elements by value: TopK, Unique, Compress, NonMaxSuppression."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import boolean, f32, f64, i8, i16, i32, i64, u8, u64
from engine.ops.cases.case import case
from engine.ops.cases.data import constant, filled, limits, real, whole

CASES: Final = [
    *(
        case(f"TopK/{k}-axis={axis}-largest={largest}-{data.type.name}", [data, constant([k])],
             {"axis": axis, "largest": largest}, num_outputs=2)
        for data in (real(5, 60, 3), whole(5, 60, 3, type=i32, low=0, high=20), whole(5, 60, 3, type=i64, high=20))
        for k, axis in ((1, 1), (7, 1), (5, 0), (3, -1))
        for largest in (0, 1)
    ),
    *(
        case(f"TopK/{data.type.name}", [data, constant([5])], num_outputs=2)
        for data in (
            real(4, 60, type=f64), whole(4, 60, type=u64, low=0, high=20), whole(4, 60, type=u8, low=0, high=20),
            whole(4, 60, type=i16, low=-9, high=20), whole(4, 60, type=i8, low=-9, high=20),
        )
    ),
    case("TopK/all", [real(3, 40), constant([40])], num_outputs=2),
    case("TopK/none", [real(3, 40), constant([0])], num_outputs=2),
    case("TopK/of-5000", [real(2, 5000), constant([50])], num_outputs=2),
    case("TopK/edges", [filled((1, 13), [v for v in limits(f32) if v == v]), constant([13])], num_outputs=2),
    case("Compress/axis", [real(3, 4, 5), filled((4,), (True, False, True, True), boolean)], {"axis": 1}),
    case("Compress/flat", [real(3, 4), filled((7,), (True, False, True), boolean)]),
    *(
        case(f"NonMaxSuppression/rank={len(shape)}-centre={centre}", [
            real(2, 30, 4, low=0, high=2), real(2, 3, 30), filled(shape, [9], i64), filled(shape, [0.3]),
            filled(shape, [-1.0])], {"center_point_box": centre})
        for shape in ((), (1,))
        for centre in (0, 1)
    ),
    case("NonMaxSuppression/equal-scores", [
        real(1, 20, 4, low=0, high=2), filled((1, 1, 20), [0.5, 1.0]), filled((), [20], i64), filled((), [0.2])]),
    case("NonMaxSuppression/none", [real(1, 5, 4), real(1, 2, 5)]),
    case("Shape/before-the-first-axis", [real(2, 3, 4)], {"start": -5, "end": -4}),
    case("Shape/last-axes", [real(2, 3, 4)], {"start": -2, "end": 9}),
    case("Unique/sorted", [whole(40, low=0, high=9)], num_outputs=4),
]  # fmt: skip
