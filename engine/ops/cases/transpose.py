"""Cases of permutations: Transpose, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from typing import Final

from engine.ir import ElementType
from engine.ir.element_type import boolean, f16, f32, f64, i8, i64
from engine.ops.cases.case import case
from engine.ops.cases.data import Data, real

_TYPES: Final[tuple[ElementType, ...]] = (boolean, i8, f16, f32, i64, f64)

CASES: Final = [
    *(
        case(f"Transpose/{''.join(map(str, order)) or 'reversed'}-{type.name}", [Data((2, 5, 7, 9), type)],
             {"perm": list(order)} if order else {})
        for type in _TYPES
        for order in ((0, 2, 1, 3), (3, 2, 1, 0), (0, 2, 3, 1), ())
    ),
    *(
        case(f"Transpose/maps-{''.join(map(str, order))}-{channels}", [real(2, channels, 6, 11)], {"perm": list(order)})
        for channels in (3, 16, 20, 40)
        for order in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2))
    ),
    case("Transpose/unit-axes", [real(1, 8, 1, 4)], {"perm": [2, 1, 0, 3]}),
    case("Transpose/of-nothing", [real(3, 0, 4)], {"perm": [2, 0, 1]}),
    case("Transpose/large", [real(300, 700)]),
    case("Transpose/six-axes", [real(2, 3, 2, 4, 3, 2)], {"perm": [5, 0, 3, 1, 4, 2]}),
    case("Transpose/eight-axes", [real(1, 2, 2, 3, 2, 2, 2, 3)], {"perm": [0, 1, 4, 2, 6, 3, 5, 7]}),
    case("Transpose/dynamic", [real(2, 5, 7)], {"perm": [1, 2, 0]}, is_dynamic=True),
    *(
        case(f"DepthToSpace/{mode}", [real(2, 36, 5, 7)], {"blocksize": 3, "mode": mode}) for mode in ("DCR", "CRD")
    ),
    case("SpaceToDepth/2", [real(2, 5, 6, 8)], {"blocksize": 2}),
]  # fmt: skip
