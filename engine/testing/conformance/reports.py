"""A scorecard as text for a terminal, and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import astuple
from importlib import resources
from typing import Any, Final

from engine.drawing.table import escaped, table
from engine.errors import PluginError
from engine.testing.conformance.against import Changes, changes_lines
from engine.testing.conformance.matrix import MEANINGS, SIGNS, columns_of, matrix_json, matrix_lines, type_matrix
from engine.testing.conformance.scorecard import AREAS, Scorecard

_FAULTS: Final = 10
_SKIPS: Final = 12
_OPERATORS: Final = 40
_CHANGES: Final = 20
_WIDTH: Final = 100


def as_text(card: Scorecard, changes: Changes | None = None) -> str:
    """The score by area, what to fix first, what did not apply, the types, and what has changed."""
    return "\n".join(_lines(card, changes))


def as_json(card: Scorecard, changes: Changes | None = None) -> dict[str, Any]:
    """All results as a JSON value, with the changes as `against`, if any."""
    document = {**card.to_json(), "types": matrix_json(type_matrix(card.results))}
    return document if changes is None else {**document, "against": changes.to_json()}


def _lines(card: Scorecard, changes: Changes | None) -> Iterator[str]:
    yield f"{card.device}: {_shown(card.description)}"
    yield ""
    rows = [
        (name, _percent(area.score), area.passed, area.failed, area.skipped, AREAS.get(name, ""))
        for name, area in card.areas.items()
    ]
    yield from table(rows, ("AREA", "SCORE", "PASSED", "FAILED", "N/A", "WHAT IS REQUIRED"))
    yield ""
    if card.faults:
        yield "fix first:"
        for fault in card.faults[:_FAULTS]:
            more = f" and {len(fault.checks) - 1} more" if len(fault.checks) > 1 else ""
            yield f"  {fault.area}: {_shown(fault.checks[0])}{more}"
            yield f"    required: {_shown(fault.requirement)}"
            yield f"    found:    {_shown(fault.message)}"
        if len(card.faults) > _FAULTS:
            yield f"  and {len(card.faults) - _FAULTS} more reasons; the reports list all of them"
        yield ""
    yield from _skips(card)
    yield from matrix_lines(type_matrix(card.results))
    if changes is not None:
        yield from map(escaped, changes_lines(changes, _CHANGES, _WIDTH))
    if card.ended_early:
        yield f"ended early: {card.ended_early}"
    yield score_line(card)


def score_line(card: Scorecard) -> str:
    """One line with the score, and how many checks passed, failed and did not apply."""
    marks = "full marks" if card.is_perfect else f"{_percent(card.score)} of 100"
    counts = [sum(area[place] for area in map(astuple, card.areas.values())) for place in range(3)]
    return f"score of {card.device}: {marks} ({counts[0]} passed, {counts[1]} failed, {counts[2]} do not apply)"


def _skips(card: Scorecard) -> Iterator[str]:
    """The checks that did not apply: one paragraph for operators, and a line for each of the other reasons."""
    if not card.skips:
        return
    yield "did not apply:"
    if operators := card.skipped_operators:
        total = sum(count for _, count in operators)
        shown = [f"{name} {count}" for name, count in operators[:_OPERATORS]]
        if len(operators) > _OPERATORS:
            shown.append(f"and {len(operators) - _OPERATORS} more operators")
        yield f"  {total:5}  the device does not run the operator itself, or not in this form:"
        yield from textwrap.wrap(", ".join(shown), _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
    yield from (f"  {count:5}  {_shown(reason)}" for reason, count in card.other_skips[:_SKIPS])
    yield ""


def as_html(card: Scorecard, changes: Changes | None = None) -> str:
    """A page without references to other files. Raises `PluginError` without Jinja."""
    try:
        import jinja2
    except ImportError as e:
        raise PluginError(
            'the page needs Jinja, which the extra `plugin` installs: pip install "engine-sdk[plugin]"'
        ) from e
    text = (resources.files("engine.testing.conformance") / "report.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    matrix = type_matrix(card.results)
    values = {"card": card, "changes": changes, "matrix": matrix, "columns": columns_of(matrix)}
    return environment.from_string(text).render(values, about=AREAS, percent=_percent, signs=SIGNS, meanings=MEANINGS)


def _percent(score: float | None) -> str:
    if score is None:
        return "-"
    # Rounded down, so that only a perfect score is shown as 100.
    return f"{int(score * 10) / 10:g}"


def _shown(text: str) -> str:
    line = escaped(text.strip().partition("\n")[0])
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."
