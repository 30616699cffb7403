"""Cases of reductions: various axes, each type, long sums, non-finite values, empty tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from engine.ir.element_type import boolean, f16, f32, f64, i8, i32, i64, u8, u32, u64
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, filled, limits, real, whole

_REAL: Final = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
_INTEGER: Final = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")
_EXACT: Final = ("ReduceMax", "ReduceMin")


def _reduction(what: str, data: Data, axes: Sequence[int] | None, **attributes: Any) -> OperatorCase:
    op_type = what.partition("/")[0]
    reduced = axes if axes else range(len(data.shape))
    count = math.prod(data.shape[axis] for axis in reduced) if data.type.is_real and op_type not in _EXACT else 1
    inputs = [data] if axes is None else [data, constant(list(axes))]
    return case(what, inputs, attributes, terms=max(1, count))


def _near_one(*shape: int) -> Data:
    """Values near 1, so that products and logarithms stay in range."""
    return real(*shape, low=0.5, high=1.5)


def _axes_of(op_type: str) -> list[OperatorCase]:
    x = _near_one(2, 3, 5, 4, 7)
    return [
        _reduction(f"{op_type}/axes-{','.join(map(str, axes))}-keepdims={keep}", x, axes, keepdims=keep)
        for axes in ((0,), (4,), (1, 2), (0, 4), (1, 3), (0, 2, 4), (2, 3, 4), (0, 1, 2, 3, 4), (-1, -3))
        for keep in (0, 1)
    ]


CASES: Final = [
    *(each for op_type in _REAL for each in _axes_of(op_type)),
    *(
        _reduction(f"{op_type}/large-{'x'.join(map(str, shape))}", _near_one(*shape), axes)
        for op_type in ("ReduceSum", "ReduceLogSumExp", "ReduceMax", "ReduceL2")
        for shape, axes in (
            ((300000,), (0,)), ((100000, 3), (0,)), ((40, 3000, 70), (1,)), ((2, 70000, 17), (0, 1)),
            ((5, 3, 20000), (0, 2)),
        )
    ),
    *(
        _reduction(f"{op_type}/{type.name}-{','.join(map(str, axes))}", whole(3, 6, 5, type=type, low=-9, high=9), axes)
        for op_type in _INTEGER
        for type in (i32, i64)
        for axes in ((1,), (2,), (0, 2), (0, 1, 2))
    ),
    *(
        _reduction(f"{op_type}/{type.name}", whole(4, 5, 70, type=type), (0, 2), keepdims=0)
        for op_type in _EXACT
        for type in (u8, i8)
    ),
    *(_reduction(f"{op_type}/bool", Data((4, 5, 70), boolean), (0, 2)) for op_type in _EXACT),
    *(_reduction(f"ReduceSum/{type.name}", real(5, 60, type=type), (1,)) for type in (f64, f16)),
    _reduction("ReduceSum/no-axes", _near_one(3, 4), None, keepdims=0),
    _reduction("ReduceSum/empty-axes", _near_one(3, 4), ()),
    _reduction("ReduceSum/noop", _near_one(3, 4), (), noop_with_empty_axes=1),
    _reduction("ReduceLogSum/noop", _near_one(3, 4), None, noop_with_empty_axes=1),
    *(
        _reduction(f"{op_type}/of-nothing", real(2, 0, 3), (1,))
        for op_type in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceLogSumExp")
    ),
    _reduction("ReduceSum/nothing-left", real(2, 0, 3), (2,), keepdims=0),
    *(
        _reduction(f"{op_type}/edges", filled((4, 14), limits(f32)), (axis,))
        for op_type in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp", "ReduceL2", "ReduceProd")
        for axis in (0,)
    ),
    _reduction("ReduceLogSumExp/large-exponents", filled((2, 2), (1e4, 1e4, -1e4, -1e4)), (1,)),
    *(
        case(f"{op_type}/{what}-axis={axis}-last={last}", [data],
             {"axis": axis, "select_last_index": last, "keepdims": last})
        for op_type in ("ArgMax", "ArgMin")
        for last in (0, 1)
        for axis in (0, -1)
        for what, data in (
            ("ties", whole(5, 60, type=i32, low=0, high=9)), ("f32", real(5, 60)),
            ("edges", filled((2, 14), limits(f32))),
        )
    ),
    *(
        case(f"CumSum/axis={axis}-exclusive={exclusive}-reverse={reverse}", [real(3, 5, 70), constant(axis)],
             {"exclusive": exclusive, "reverse": reverse}, terms=70, factors=(0,))
        for axis in (0, 2, -2)
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    case("CumSum/i64", [whole(3, 50), constant(1)]),
    *(
        case(f"CumProd/{type.name}-reverse={reverse}", [real(3, 9, 70, type=type, low=0.5, high=1.5), constant(1)],
             {"exclusive": reverse, "reverse": reverse}, terms=9)
        for type in (f32, f64)
        for reverse in (0, 1)
    ),
    case("CumSum/f64", [real(3, 70, type=f64), constant(-1)], terms=70, factors=(0,)),
    *(
        _reduction(f"{op_type}/f64-{axis}", real(5, 6, 70, type=f64, low=0.5, high=1.5), (axis,))
        for op_type in _REAL
        for axis in (1, 2)
    ),
    *(
        _reduction(f"{op_type}/{type.name}", whole(4, 5, 7, type=type, low=0, high=9), (1,))
        for op_type in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
        for type in (u32, u64)
    ),
    _reduction("ReduceMean/dynamic", _near_one(2, 3, 40), (2,)),
]  # fmt: skip
