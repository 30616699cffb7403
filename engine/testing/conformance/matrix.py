"""Which operators are right, wrong or refused in which element types, from the checks of single operators."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Final

from engine.startup import dataclass
from engine.testing.conformance.scorecard import CheckResult

_NUMBER: Final = re.compile(r"(b?f|i|u|c)(\d+)")
_KINDS: Final = ("f", "bf", "i", "u", "bool", "string", "c")

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
    """The types that occur, in the order of the columns."""
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
    """Floating-point types, integers, other types, and values that are no tensors; each kind from wide to narrow."""
    return sorted(names, key=_place)


def _place(name: str) -> tuple[int, int, int, str]:
    found = _NUMBER.match(name)
    if found is None:
        return (_KINDS.index(name) if name in _KINDS else len(_KINDS)), 0, 0, name
    kind, is_brain = found[1].removeprefix("b"), found[1] == "bf"
    return _KINDS.index(kind), -int(found[2]), int(is_brain), name
