"""Cases of Einsum: products with and without transposition, diagonals, sums, broadcasts."""

from __future__ import annotations

from typing import Final

from engine.ops.cases.case import case
from engine.ops.cases.data import real

_EQUATIONS: Final[list[tuple[str, list[tuple[int, ...]]]]] = [
    ("ij,jk->ik", [(5, 7), (7, 9)]), ("ij,kj->ik", [(5, 7), (9, 7)]), ("bij,bjk->bik", [(3, 5, 7), (3, 7, 9)]),
    ("bhid,bhjd->bhij", [(2, 3, 5, 8), (2, 3, 6, 8)]), ("bihd,bjhd->bhij", [(2, 5, 3, 8), (2, 6, 3, 8)]),
    ("bhij,bjhd->bihd", [(2, 3, 5, 6), (2, 6, 3, 8)]), ("i,j->ij", [(5,), (6,)]), ("ij->ji", [(5, 6)]),
    ("ij->i", [(5, 6)]), ("ii->i", [(5, 5)]), ("ii", [(5, 5)]), ("ij,ij->", [(5, 6), (5, 6)]),
    ("...ij,...jk->...ik", [(2, 1, 5, 7), (1, 3, 7, 4)]), ("ijk,k->ij", [(3, 4, 5), (5,)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
]  # fmt: skip

CASES: Final = [
    case(f"Einsum/{equation.replace('->', ' to ')}", [real(*shape) for shape in shapes], {"equation": equation},
         terms=60, factors=tuple(range(len(shapes))))
    for equation, shapes in _EQUATIONS
]  # fmt: skip
