"""How commands print: aligned tables, JSON, and settings."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.drawing.table import escaped, table

if TYPE_CHECKING:
    from engine.runtime.comparison import Comparison


def say(text: str = "", *, end: str = "\n", flush: bool = False, lines: bool = False, to_stderr: bool = False) -> None:
    """Print one line, after blank ones if it begins with newlines; control characters of names in it are escaped
    (`escaped`).

    With `lines`, newlines and tabs are also kept, for a text of several lines.
    """
    blank = text[: len(text) - len(text.lstrip("\n"))]
    shown = blank + escaped(text[len(blank) :], keep="\n\t" if lines else "")
    print(shown, end=end, flush=flush, file=sys.stderr if to_stderr else None)


def print_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> None:
    """Print rows in columns; columns in which every cell is a number are aligned to the right."""
    for line in table(rows, header):
        print(line)


def print_json(value: object) -> None:
    """Print one JSON value; numbers that JSON cannot represent (NaN, infinities) become null."""
    print(json_text(value), end="")


def json_text(value: object) -> str:
    """One JSON value as text, as `print_json` prints it."""
    return json.dumps(_plain(value), indent=2, allow_nan=False) + "\n"


def print_comparisons(comparisons: Iterable[tuple[str, Comparison]]) -> None:
    """Print how outputs compare with expected ones, each with the file that it belongs to, or ""."""
    rows = [
        (
            *([file] if file else []),
            c.name,
            "ok" if c.is_close else "DIFFERS",
            c.problem
            or f"{c.mismatches} of {c.size} differ; largest difference {c.max_absolute:.3g}, "
            f"relative {c.max_relative:.3g}",
        )
        for file, c in comparisons
    ]
    header = ("OUTPUT", "VERDICT", "DETAILS")
    print_table(rows, ("BLOB", *header) if rows and len(rows[0]) > len(header) else header)


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """How an output compares with the expected one, for programs."""
    return {
        "name": comparison.name,
        "close": comparison.is_close,
        "size": comparison.size,
        "mismatches": comparison.mismatches,
        "max_absolute": comparison.max_absolute,
        "max_relative": comparison.max_relative,
        "problem": comparison.problem,
    }


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def setting(value: object) -> str:
    """Return a property's value in the syntax of `-c KEY=VALUE`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return json.dumps(_plain(value))
    return str(value)
