"""Cases of operators that reshape or repeat tensors, or return shapes."""

from __future__ import annotations

from typing import Final

from engine.ir.element_type import boolean, f32, i32, i64
from engine.ops.cases.case import case
from engine.ops.cases.data import constant, filled, real, whole

CASES: Final = [
    case("Reshape/flat", [real(2, 20, 3, 4), constant([2, 240])]),
    case("Reshape/inferred", [real(2, 20, 3, 4), constant([0, -1, 3])]),
    case("Reshape/zero-allowed", [real(0, 20, 3), constant([3, 0, 7])], {"allowzero": 1}),
    case("Reshape/to-a-scalar", [real(1, 1), constant([])]),
    case("Reshape/i64", [whole(4, 6), constant([3, 8])]),
    *(case(f"Flatten/axis={axis}", [real(2, 3, 4, 5)], {"axis": axis}) for axis in (0, 1, 3, 4, -1)),
    case("Squeeze/axes", [real(2, 1, 3, 1), constant([1, -1])]),
    case("Squeeze/all", [real(2, 1, 3, 1)]),
    case("Unsqueeze/axes", [real(2, 3), constant([0, -1])]),
    case("Identity/f32", [real(2, 20, 3, 4)]),
    *(
        case(f"Expand/{'x'.join(map(str, data.shape))}-{'x'.join(map(str, shape))}", [data, constant(list(shape))])
        for data, shape in (
            (real(3, 1), (2, 3, 5)), (real(3, 1, 1), (1, 4, 1)), (real(2, 3), (1, 1)), (whole(1, 5), (7, 1)),
            (real(1, 300), (200, 1)),
        )
    ),
    case("Tile/f32", [real(2, 3), constant([3, 2])]),
    case("Tile/none", [real(2, 3), constant([0, 2])]),
    case("Tile/i64", [whole(2, 1, 3), constant([1, 4, 2])]),
    case("Shape/whole", [real(2, 3, 4)]),
    case("Shape/part", [real(2, 3, 4)], {"start": -2, "end": 3}),
    case("Size/f32", [real(2, 3, 4)]),
    *(
        case(f"EyeLike/{rows}x{columns}-k={k}", [real(rows, columns)], {"k": k, "dtype": f32})
        for rows, columns in ((3, 5), (5, 3))
        for k in (-1, 0, 2)
    ),
    case("ConstantOfShape/zeros", [constant([2, 3])]),
    case("Range/i64", [constant(3), constant(20), constant(4)]),
    case("Range/f32", [constant(3.0), constant(-2.0), constant(-0.75)], terms=8),
    case("NonZero/bool", [filled((3, 4), (True, False, False, True, True), boolean)]),
    case("Reshape/dynamic", [real(2, 20, 3), constant([0, -1])], is_dynamic=True),
    case("BitCast/f32-i32", [real(3, 5)], {"to": i32}),
    case("Expand/i64", [whole(3, 1, type=i64), constant([3, 4])]),
]  # fmt: skip
