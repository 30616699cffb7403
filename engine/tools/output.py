"""How commands print: aligned tables, JSON, and short forms of numbers and sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def print_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> None:
    """Print rows in columns; columns in which every cell is a number are aligned to the right."""
    body = [list(row) for row in rows]
    if not body:
        return
    numeric = [all(isinstance(row[i], (int, float)) for row in body) for i in range(len(body[0]))]
    cells = [[str(cell) for cell in row] for row in ([list(header)] if header else []) + body]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        padded = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, numeric, strict=True)]
        print("  ".join(padded).rstrip())


def print_json(value: object) -> None:
    """Print one JSON value; numbers that JSON cannot hold (NaN, infinities) become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def setting(value: object) -> str:
    """Return a property's value as `-c KEY=VALUE` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return json.dumps(_plain(value))
    return str(value)


def byte_count(size: int) -> str:
    """Return a size for people: `4.9 MB`."""
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{size} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
