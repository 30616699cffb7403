"""Which operators are right, wrong or refused in which element types, from the checks of single operators."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from engine.startup import dataclass
from engine.testing.conformance.scorecard import CheckResult

ORDER: Final = (
    "f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f6e2m3", "f6e3m2",
    "f4e2m1", "i64", "i32", "i16", "i8", "i4", "i2", "u64", "u32", "u16", "u8", "u4", "u2", "bool", "string", "c64",
    "c128",
)  # fmt: skip
"""The columns of the matrix; other kinds of values follow."""

SIGNS: Final[Mapping[str, str]] = {"wrong": "!", "right": "+", "partly": "~", "claimed": "?", "refused": "-"}
"""How the text shows a cell; one of a type that ONNX does not allow is empty."""
MEANINGS: Final[Mapping[str, str]] = {
    "wrong": "wrong",
    "right": "right",
    "partly": "right in some forms, others are not run",
    "claimed": "claimed, no check has computed it",
    "refused": "not run by the device",
}
_WIDTH: Final = 100
_ROWS: Final = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """How many checks of an operator in a type passed, failed, and did not apply, and whether a query claims it."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    is_claimed: bool | None = None

    @property
    def word(self) -> str:
        """A key of `SIGNS`."""
        if self.failed:
            return "wrong"
        if self.passed:
            return "partly" if self.skipped else "right"
        return "claimed" if self.is_claimed and not self.skipped else "refused"


Matrix = Mapping[str, Mapping[str, Cell]]
"""The cells by operator and type, both in the order in which they are shown."""


def type_matrix(results: Iterable[CheckResult]) -> Matrix:
    """The matrix of the checks that have an operator and a type, and of the answers to queries."""
    counts: dict[str, dict[str, list[int]]] = {}
    answers: dict[str, dict[str, bool]] = {}
    outcomes = ("passed", "failed", "skipped")
    for each in results:
        if each.operator and each.element_type and each.outcome in outcomes:
            cell = counts.setdefault(each.operator, {}).setdefault(each.element_type, [0, 0, 0])
            cell[outcomes.index(each.outcome)] += 1
        if each.operator and each.answers:
            answers.setdefault(each.operator, {}).update(each.answers)
    found: dict[str, dict[str, Cell]] = {}
    for operator in sorted(counts.keys() | answers.keys()):
        tried, told = counts.get(operator, {}), answers.get(operator, {})
        cells: dict[str, Cell] = {}
        for name in _ordered(tried.keys() | told.keys()):
            passed, failed, skipped = tried.get(name, (0, 0, 0))
            cells[name] = Cell(passed, failed, skipped, told.get(name))
        found[operator] = cells
    return found


def columns_of(matrix: Matrix) -> list[str]:
    """The types that occur, in the order of `ORDER`."""
    return _ordered({name for cells in matrix.values() for name in cells})


def matrix_lines(matrix: Matrix) -> Iterator[str]:
    """The matrix as text. Operators that are run, or not run, in all of their types share a paragraph."""
    if not matrix:
        return
    words = {operator: {cell.word for cell in cells.values()} for operator, cells in matrix.items()}
    run = [operator for operator, found in words.items() if found <= {"right", "claimed"}]
    refused = [operator for operator, found in words.items() if found == {"refused"}]
    mixed = {operator: cells for operator, cells in matrix.items() if operator not in {*run, *refused}}
    legend = ", ".join(f"{sign} {MEANINGS[word]}" for word, sign in SIGNS.items())
    yield "types by operator:"
    yield from textwrap.wrap(legend, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    wide = max(map(len, mixed), default=0)
    ranked = sorted(mixed, key=lambda operator: "wrong" not in words[operator])
    for operator in ranked[:_ROWS]:
        head = f"  {operator:{wide}}  "
        yield from textwrap.wrap(
            _row(mixed[operator]),
            _WIDTH,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
        )
    if len(ranked) > _ROWS:
        yield f"  and {len(ranked) - _ROWS} more operators, which the reports list"
    for operators, about in ((run, "run in each of their types"), (refused, "not run in any type")):
        if operators:
            yield f"  {about}:"
            text = ", ".join(f"{operator}{_tried(matrix[operator])}" for operator in operators)
            yield from textwrap.wrap(text, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    yield ""


def _row(cells: Mapping[str, Cell]) -> str:
    """The types by what is known of them: a table of all types would be too wide for a terminal."""
    by_word: dict[str, list[str]] = {}
    for name, cell in cells.items():
        by_word.setdefault(cell.word, []).append(name)
    return "  ".join(f"{sign} {' '.join(by_word[word])}" for word, sign in SIGNS.items() if word in by_word)


def _tried(cells: Mapping[str, Cell]) -> str:
    """The types that checks have computed, in parentheses."""
    names = [name for name, cell in cells.items() if cell.word == "right"]
    return f" ({', '.join(names)})" if names else ""


def matrix_json(matrix: Matrix) -> dict[str, dict[str, dict[str, int]]]:
    """The matrix as a JSON value: how many checks passed, failed and did not apply."""
    return {operator: {name: asdict(cell) for name, cell in cells.items()} for operator, cells in matrix.items()}


def _ordered(names: Iterable[str]) -> list[str]:
    known: Sequence[str] = ORDER
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))
