"""Tables as HTML, for notebooks and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A heading and a table as HTML; all text is escaped."""
    from html import escape  # whose table of entities takes half a megabyte

    return f"<b>{escape(title)}</b>{plain_table(columns, rows)}"


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[int] = ()) -> str:
    """A table as HTML; all text is escaped. The columns in `right` are aligned to the right, as numbers are.

    If all names of columns are empty, there is no heading.
    """
    from html import escape

    classes = ['class="number"' if i in right else "" for i in range(len(columns))]

    def row(tag: str, cells: Sequence[object]) -> str:
        each = zip(classes, cells, strict=True)
        return "".join(f"<{tag}{kind and ' '}{kind}>{escape(str(cell))}</{tag}>" for kind, cell in each)

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    head = f"<thead><tr>{row('th', columns)}</tr></thead>" if any(columns) else ""
    return f"<table>{head}<tbody>{body}</tbody></table>"
