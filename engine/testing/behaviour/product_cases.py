"""Gemm and MatMul with every attribute, every form of C, and shapes that are not square."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from engine.testing.behaviour.cases import Array
from engine.testing.behaviour.numeric import NumericCase, drawn, f32
from engine.testing.behaviour.oracles import gemm

_ROWS, _DEPTH, _COLUMNS = 3, 4, 5

_C_SHAPES: Final = ((), (1,), (_COLUMNS,), (1, _COLUMNS), (_ROWS, 1), (_ROWS, _COLUMNS))


def _gemm(
    what: str, c_shape: tuple[int, ...] | None = None, constants: tuple[int, ...] = (1, 2), **given: Any
) -> NumericCase:
    a = drawn(*((_DEPTH, _ROWS) if given.get("transA") else (_ROWS, _DEPTH)), seed=1)
    b = drawn(*((_COLUMNS, _DEPTH) if given.get("transB") else (_DEPTH, _COLUMNS)), seed=2)
    c = None if c_shape is None else drawn(*c_shape, seed=3)
    inputs: tuple[Array | None, ...] = (a, b) if c is None else (a, b, c)
    used = tuple(index for index in constants if index < len(inputs))
    return NumericCase(f"Gemm: {what}", "Gemm", inputs, (f32(*gemm(a, b, c, **given)),), given, used)


def _gemms() -> Iterator[NumericCase]:
    yield _gemm("plain")
    yield _gemm("transA", transA=1)
    yield _gemm("transB", transB=1)
    yield _gemm("transA and transB", transA=1, transB=1)
    yield _gemm("alpha", alpha=0.5)
    yield _gemm("alpha 0", (_COLUMNS,), alpha=0.0)
    yield _gemm("beta", (_COLUMNS,), beta=-1.5)
    yield _gemm("beta 0", (_COLUMNS,), beta=0.0)
    for shape in _C_SHAPES:
        yield _gemm(f"C {list(shape)}", shape)
    yield _gemm("everything", (_ROWS, 1), alpha=0.3, beta=0.7, transA=1, transB=1)
    yield _gemm("no constants", (_COLUMNS,), (), alpha=0.25, beta=2.0, transB=1)


def _matmuls() -> Iterator[NumericCase]:
    for what, left, right, constants in (
        ("not square", (3, 4), (4, 5), (1,)),
        ("no constants", (3, 4), (4, 5), ()),
        ("one matrix for a stack", (2, 3, 4), (4, 5), (1,)),
        ("stacks", (2, 3, 4), (2, 4, 5), (1,)),
        ("broadcast stacks", (2, 1, 3, 4), (3, 4, 2), ()),
        ("row and matrix", (4,), (4, 5), (1,)),
        ("matrix and column", (3, 4), (4,), (1,)),
        ("more columns than rows", (1, 7), (7, 33), (1,)),
    ):
        a, b = drawn(*left, seed=4), drawn(*right, seed=5)
        yield NumericCase(f"MatMul: {what}", "MatMul", (a, b), (f32(a @ b, abs(a) @ abs(b)),), {}, constants)


PRODUCTS: Final = (*_gemms(), *_matmuls())
