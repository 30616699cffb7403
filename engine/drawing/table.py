"""Text output: aligned tables, printable text, and short forms of sizes and times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), right: Collection[int] = ()) -> list[str]:
    """The lines of a table; columns of numbers and those in `right` are right-aligned."""
    body = [list(row) for row in rows]
    if not body:
        return []
    columns = range(len(body[0]))
    is_right = [i in right or all(isinstance(row[i], (int, float)) for row in body) for i in columns]
    cells = [[escaped(str(cell)) for cell in row] for row in ([list(header)] if header else []) + body]
    widths = [max(len(row[i]) for row in cells) for i in columns]
    padded = [
        [c.rjust(w) if aligned else c.ljust(w) for c, w, aligned in zip(row, widths, is_right, strict=True)]
        for row in cells
    ]
    return ["  ".join(row).rstrip() for row in padded]


def escaped(text: str, keep: str = "") -> str:
    r"""`text` as a terminal may show it: names in strangers' files may hold its commands, or pretend to be other lines.

    Control characters, changes of writing direction, lone surrogates and the like become `\x1b`, `\n` or `\u202e`;
    those in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def printable(line: str, longest: int | None = None) -> str:
    """One line of at most `longest` characters, without any that terminals or documents cannot show."""
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return line if longest is None or len(line) <= longest else line[: longest - 3] + "..."


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 subgraph`, `2 subgraphs`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def byte_count(size: int) -> str:
    """Return a size with a unit: `4.9 MB`."""
    number = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{size} bytes" if unit == "bytes" else f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """Return a time with a unit: `1.25 ms`."""
    if not seconds:
        return "0 us"
    number = seconds * 1e6
    for unit in ("us", "ms", "s"):
        if number < 1000 or unit == "s":
            break
        number /= 1000
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{digits}f} {unit}"
