"""Cases of slicing and padding: Slice, Split, Concat, Pad, Trilu."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import boolean, f16, i8, i32, i64
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, real, whole

_BIG: Final = 2**63 - 1


def _slice(
    what: str, shape: tuple[int, ...], starts: list[int], ends: list[int], axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> OperatorCase:  # fmt: skip
    given = [starts, ends, *([] if axes is None else [axes]), *([] if steps is None else [steps])]
    return case(f"Slice/{what}", [real(*shape), *map(constant, given)])


def _pad(what: str, x: Data, pads: list[int], value: float | None = None, axes: list[int] | None = None,
         **attributes: Any) -> OperatorCase:  # fmt: skip
    more = [None if value is None else constant(value, x.type), *([constant(axes)] if axes else [])]
    while more and more[-1] is None:
        more.pop()
    return case(f"Pad/{what}", [x, constant(pads), *more], attributes)


CASES: Final = [
    _slice("front", (5, 7), [1], [4]),
    _slice("axes", (5, 7, 6), [1, -3], [4, _BIG], [2, -2]),
    _slice("steps", (9, 8), [1, 7], [9, 1], [0, 1], [3, -2]),
    _slice("backwards", (9,), [_BIG], [-_BIG], [0], [-1]),
    _slice("clamped", (5, 7), [-100, 3], [100, 100], [0, 1]),
    _slice("empty", (5, 7), [4], [2], [0]),
    _slice("channels", (1, 40, 3, 5), [16], [99], [1]),
    _slice("odd-channels", (2, 40, 3, 5), [3], [20], [1]),
    *(
        case(f"Slice/{type.name}", [Data((6, 9), type), constant([1]), constant([8]), constant([1]), constant([2])])
        for type in (boolean, i8, f16, i32, i64)
    ),
    *(
        case(f"Split/{axis}-{','.join(map(str, parts))}", [real(2, sum(parts) if axis == 1 else 20, sum(parts), 5)
             if axis == 2 else real(2, sum(parts), 3, 5), constant(list(parts))], {"axis": axis},
             num_outputs=len(parts))
        for axis, parts in ((1, (16, 32)), (1, (24, 16, 8)), (1, (5, 20)), (2, (1, 4, 3)), (1, (16, 0, 16)))
    ),
    case("Split/equal", [real(2, 20, 7)], {"axis": -1, "num_outputs": 4}, num_outputs=4),
    *(
        case(f"Concat/channels-{','.join(map(str, counts))}-{batch}", [real(batch, n, 3, 5) for n in counts],
             {"axis": 1})
        for counts in ((16, 32), (64, 24, 40), (7, 9, 5), (32, 5), (16, 0, 16))
        for batch in (1, 3)
    ),
    *(case(f"Concat/axis={axis}", [real(2, 20, 3, 5) for _ in range(3)], {"axis": axis}) for axis in (0, 2, -1)),
    *(case(f"Concat/{type.name}", [Data((2, 3), type), Data((2, 4), type)], {"axis": 1}) for type in (i8, f16, i64)),
    case("Concat/one", [real(2, 3)], {"axis": 0}),
    case("Concat/constant", [real(1, 16, 2, 2), constant(real(1, 5, 2, 2))], {"axis": 1}),
    *(
        _pad(f"{mode}-{','.join(map(str, pads))}", whole(6, 5, type=i32), list(pads), mode=mode)
        for mode in ("constant", "edge", "reflect", "wrap")
        for pads in ((1, 2, 3, 1), (2, -2, -1, 2), (-3, 2, 0, -2), (3, -1, -2, -1))
    ),
    _pad("value", real(2, 3, 4, 5), [0, 0, 1, 2, 0, 0, 3, 1], -1.5),
    _pad("channels", real(1, 19, 4, 5), [0, 3, 0, 0, 0, 10, 0, 0], 0.5),
    _pad("axes", real(2, 3, 4), [1, 2, 0, 1], 7.0, [-1, 0]),
    _pad("edge-maps", real(1, 16, 4, 5), [0, 0, 2, 1, 0, 0, 1, 2], mode="edge"),
    *(
        case(f"Trilu/upper={upper}-k={k}", [real(2, 5, 7), constant(k)], {"upper": upper})
        for upper in (0, 1)
        for k in (-1, 0, 2)
    ),
    _slice("large", (300, 1000), [1, 3], [299, 997], [0, 1], [2, 3]),
]  # fmt: skip
