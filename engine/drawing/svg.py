"""Elements that all pictures share: colours, escaped text, and the frame of an SVG document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from engine.drawing.table import printable

_PALETTE = ("#9ecae9", "#ffbf79", "#88d27a", "#ff9d98", "#d6a5c9", "#f2cf5b", "#83bcb6", "#bab0ac")
CHARACTER_WIDTH = 7.0
"""The width of a character in pixels."""
LINE_HEIGHT = 16.0
MAX_CHARACTERS = 60
"""The limit on the characters of a line in a picture."""


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order of appearance; colours repeat if there are more names than colours."""
    return {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(dict.fromkeys(names))}


def text(x: float, y: float, line: str, attributes: str = "", longest: int = MAX_CHARACTERS) -> str:
    """A line of text of at most `longest` characters, escaped, with its baseline at `y`."""
    return f'<text x="{x:.0f}" y="{y:.0f}"{attributes and " "}{attributes}>{escape(printable(line, longest))}</text>'


def tooltip(lines: Iterable[str]) -> str:
    """The tooltip of the element that contains it."""
    return f"<title>{escape(chr(10).join(map(printable, lines)))}</title>"


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """A complete document of `parts`; `url(#a)` is an arrow head for `marker-end`."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        'font-family="monospace" font-size="11"><defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def legend(colours: Mapping[str, str], y: float) -> list[str]:
    """The meaning of each colour, in a row that is `legend_width` wide."""
    entries, x = [], 24.0
    for name, colour in colours.items():
        entries.append(
            f'<g><rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" fill="{colour}"/>{text(x + 18, y + 11, name)}</g>'
        )
        x += _entry_width(name)
    return entries


def legend_width(colours: Iterable[str]) -> float:
    """The width of a legend in pixels, with margins."""
    return 48.0 + sum(map(_entry_width, colours))


def _entry_width(name: str) -> float:
    return max(140.0, 36 + min(len(name), MAX_CHARACTERS) * CHARACTER_WIDTH)
