"""Cases of matrix products: broadcasts, constants, transposed operands, integers."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import f16, f64, i8, i32, u8
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, real, whole

_SHAPES: Final[list[tuple[tuple[int, ...], tuple[int, ...]]]] = [
    ((5, 7), (7, 9)), ((1, 128), (128, 128)), ((3, 130, 40), (40, 33)), ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (2, 3, 5, 6)), ((2, 3, 1, 5), (1, 3, 5, 6)),
    ((2, 1, 3, 1, 4, 5), (1, 2, 1, 3, 5, 2)), ((7,), (7, 4)), ((3, 6, 7), (7,)), ((7,), (7,)), ((7,), (2, 7, 4)),
    ((2, 40, 64), (64, 1)), ((3, 0, 4), (4, 2)), ((3, 4, 0), (0, 2)), ((1, 1500), (1500, 70)), ((130, 257), (257, 300)),
]  # fmt: skip
_GEMM: Final[list[tuple[dict[str, Any], tuple[int, ...] | None]]] = [
    ({}, None), ({"alpha": 0.5, "transB": 1}, (37,)), ({"beta": 2.0}, (37,)), ({"beta": 0.0}, (37,)), ({}, (1, 37)),
    ({"alpha": -1.5}, (9, 37)), ({"beta": -0.5}, (9, 37)), ({"beta": 3.0, "alpha": 2.0}, (9, 1)), ({"transB": 1}, ()),
    ({"transB": 1}, (1,)), ({"transA": 1}, (37,)), ({"transA": 1, "transB": 1}, None),
]  # fmt: skip


def _matmul(a: tuple[int, ...], b: tuple[int, ...], *, fixed: bool) -> OperatorCase:
    name = f"MatMul/{'x'.join(map(str, a))}-{'x'.join(map(str, b))}{'-constant' if fixed else ''}"
    right = real(*b)
    return case(name, [real(*a), constant(right) if fixed else right], terms=max(a[-1], 2), factors=(0, 1))


def _gemm(number: int, attributes: dict[str, Any], c: tuple[int, ...] | None, *, fixed: bool) -> OperatorCase:
    a = real(20, 9) if attributes.get("transA") else real(9, 20)
    b = real(37, 20) if attributes.get("transB") else real(20, 37)
    inputs: list[Data] = [a, constant(b) if fixed else b, *([] if c is None else [real(*c)])]
    return case(f"Gemm/{number}{'-constant' if fixed else ''}", inputs, attributes, terms=60, factors=(0, 1))


CASES: Final = [
    *(_matmul(a, b, fixed=fixed) for a, b in _SHAPES for fixed in (False, True)),
    *(_gemm(n, attributes, c, fixed=fixed) for n, (attributes, c) in enumerate(_GEMM) for fixed in (False, True)),
    *(
        case(f"MatMul/{type.name}", [real(3, 9, 40, type=type), real(40, 17, type=type)], terms=40, factors=(0, 1))
        for type in (f64, f16)
    ),
    case("MatMul/i32", [whole(9, 20, type=i32), whole(20, 7, type=i32)]),
    *(
        case(f"MatMulInteger/{a.name}-{b.name}{'-per-column' if per_column else ''}", [
            whole(9, 70, type=a), whole(70, 17, type=b), constant(3, a), constant([2] * 17, b) if per_column else None,
        ])
        for a in (u8, i8)
        for b in (u8, i8)
        for per_column in (False, True)
        if per_column or a is b
    ),
    case("MatMulInteger/per-row-of-batches", [
        whole(2, 3, 9, 70, type=u8), whole(2, 3, 70, 17, type=i8),
        whole(2, 3, 9, 1, type=u8), whole(2, 3, 1, 17, type=i8),
    ]),
    case("MatMulInteger/per-column-of-batches", [
        whole(2, 9, 70, type=i8), constant(whole(2, 70, 17, type=i8)), None, constant(whole(2, 1, 17, type=i8)),
    ]),
    case("MatMul/dynamic", [real(2, 9, 24), constant(real(24, 50))], terms=24, factors=(0, 1), is_dynamic=True),
]  # fmt: skip
