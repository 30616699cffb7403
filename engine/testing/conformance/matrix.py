"""Which operators are right, wrong or refused in which element types, from the checks of single operators."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from engine.drawing.table import table
from engine.startup import dataclass
from engine.testing.conformance.scorecard import CheckResult

ORDER: Final = (
    "f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f6e2m3", "f6e3m2",
    "f4e2m1", "i64", "i32", "i16", "i8", "i4", "i2", "u64", "u32", "u16", "u8", "u4", "u2", "bool", "string", "c64",
    "c128",
)  # fmt: skip
"""The columns of the matrix; other kinds of values follow."""

SIGNS: Final[Mapping[str, str]] = {"right": "+", "partly": "~", "refused": "-", "wrong": "!"}
"""How the text shows a cell; a cell without a check is empty."""
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Cell:
    """How many checks of an operator in a type passed, failed, and did not apply."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def word(self) -> str:
        """A key of `SIGNS`: "partly" if some forms are right, and the device runs none of the others."""
        if self.failed:
            return "wrong"
        if self.passed:
            return "partly" if self.skipped else "right"
        return "refused"


Matrix = Mapping[str, Mapping[str, Cell]]
"""The cells by operator and type, both in the order in which they are shown."""


def type_matrix(results: Iterable[CheckResult]) -> Matrix:
    """The matrix of the checks that have an operator and a type."""
    counts: dict[str, dict[str, list[int]]] = {}
    outcomes = ("passed", "failed", "skipped")
    for each in results:
        if each.operator and each.outcome in outcomes:
            cell = counts.setdefault(each.operator, {}).setdefault(each.element_type, [0, 0, 0])
            cell[outcomes.index(each.outcome)] += 1
    return {
        operator: {name: Cell(*counts[operator][name]) for name in _ordered(counts[operator])}
        for operator in sorted(counts)
    }


def columns_of(matrix: Matrix) -> list[str]:
    """The types that occur, in the order of `ORDER`."""
    return _ordered({name for cells in matrix.values() for name in cells})


def matrix_lines(matrix: Matrix) -> Iterator[str]:
    """The matrix as text. Operators that are right, or refused, in all types with checks share a paragraph."""
    if not matrix:
        return
    words = {operator: {cell.word for cell in cells.values()} for operator, cells in matrix.items()}
    alike = {word: [operator for operator, found in words.items() if found == {word}] for word in ("right", "refused")}
    mixed = {operator: matrix[operator] for operator, found in words.items() if found not in ({"right"}, {"refused"})}
    yield "types by operator (+ right, ~ in some forms only, - not run by the device, ! wrong, empty: no check):"
    columns = columns_of(mixed)
    rows = [
        (operator, *(SIGNS[cells[name].word] if name in cells else "" for name in columns))
        for operator, cells in mixed.items()
    ]
    yield from (f"  {line}" for line in table(rows, ("OPERATOR", *columns)))
    for word, about in (("right", "right in each type with checks"), ("refused", "not run in any type")):
        if alike[word]:
            yield f"  {about}:"
            indent = " " * 4
            text = ", ".join(f"{name} ({', '.join(matrix[name])})" for name in alike[word])
            yield from textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    yield ""


def matrix_json(matrix: Matrix) -> dict[str, dict[str, dict[str, int]]]:
    """The matrix as a JSON value: how many checks passed, failed and did not apply."""
    return {operator: {name: asdict(cell) for name, cell in cells.items()} for operator, cells in matrix.items()}


def _ordered(names: Iterable[str]) -> list[str]:
    known: Sequence[str] = ORDER
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))
