"""Charts for reports: bars, values in order, and intervals. SVG that takes the page's colours and its width.

Places across a chart are percentages of its width, so that text keeps its size; labels beside it are in its margins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from engine.drawing.svg import CHARACTER_WIDTH, MAX_CHARACTERS, text, tooltip
from engine.drawing.table import printable
from engine.startup import dataclass

_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 10.0, 34.0
_ROW = 22.0
_NAMES = 230
_LETTERS = 30
_MIN_WIDTH = 200
"""Pixels of a chart without its margins, below which it is scrolled."""
_FAINT = 'fill="var(--faint)"'
_ACCENT = 'fill="var(--accent)"'


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the interval that it lies in, in a row of its own."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""


def bar_chart(bars: Sequence[tuple[str, float]], *, unit: str, height: float = 200.0) -> str:
    """Upright bars, such as of a histogram; the name of each is its tooltip, the first and last are shown below."""
    if not bars:
        return ""
    tall = height - _TOP - _BOTTOM
    top = max(value for _, value in bars) or 1.0
    step = 100 / len(bars)
    parts = _axis(top, height, unit)
    for index, (name, value) in enumerate(bars):
        size = tall * value / top
        parts.append(
            f'<rect x="{(index + 0.05) * step:.3f}%" y="{_TOP + tall - size:.1f}" width="{0.9 * step:.3f}%" '
            f'height="{size:.1f}" {_ACCENT}>{tooltip([f"{name}: {_number(value)} {unit}"])}</rect>'
        )
    parts.append(text(0, height - 12, bars[0][0]))
    if len(bars) > 1:
        parts.append(_text("100%", height - 12, bars[-1][0], 'text-anchor="end"'))
    return _svg(height, parts, f"bars in {unit}")


def point_chart(
    values: Sequence[float],
    *,
    unit: str,
    below: str,
    height: float = 200.0,
    is_log: bool = False,
    marks: Mapping[int, str] | None = None,
) -> str:
    """Values in order as points; a logarithmic axis leaves out zeros. `below` describes the order.

    `marks` has the labels of marked points, by their place in `values`.
    """
    shown = [(i, v) for i, v in enumerate(values) if math.isfinite(v) and (v > 0 or not is_log)]
    if not shown:
        return ""
    tall, marks = height - _TOP - _BOTTOM, marks or {}
    low, high = (min(v for _, v in shown), max(v for _, v in shown)) if is_log else (0.0, max(v for _, v in shown))
    low, high = (math.log10(low) - 0.05, math.log10(high) + 0.05) if is_log else (low, high or 1.0)
    parts = _axis(high, height, unit) if not is_log else _log_axis(low, high, height)
    for index, value in shown:
        level = (math.log10(value) if is_log else value) - low
        x = 100 * (index + 0.5) / len(values)
        y = _TOP + tall - tall * level / (high - low)
        tip = tooltip([f"{index}: {_number(value)} {unit}", *([marks[index]] if index in marks else [])])
        parts.append(
            f'<circle cx="{x:.3f}%" cy="{y:.1f}" r="{5 if index in marks else 2}" '
            f'fill="var(--{"bad" if index in marks else "accent"})">{tip}</circle>'
        )
        if index in marks:
            parts += _mark(marks[index], x, height - _BOTTOM)
    parts.append(text(0, height - 12, f"{below}; {unit}" if is_log else below))
    return _svg(height, parts, f"values in {unit}, {below}")


def _mark(label: str, x: float, bottom: float) -> list[str]:
    """A line at a point, with its label on the side that has room for it."""
    side = 'text-anchor="end" dx="-8"' if x > 50 else 'dx="8"'
    return [
        f'<line x1="{x:.3f}%" y1="0" x2="{x:.3f}%" y2="{bottom:.0f}" stroke="var(--bad)" stroke-dasharray="3 3"/>',
        _text(f"{x:.3f}%", _TOP, label, f'{side} fill="var(--bad)" font-weight="bold"'),
    ]


def interval_chart(rows: Sequence[Interval], *, middle: float = 1.0) -> str:
    """One row for each interval, with a line at `middle`, which an interval that holds it does not differ from."""
    if not rows:
        return ""
    low = min(middle, *(row.low for row in rows))
    high = max(middle, *(row.high for row in rows))
    span = (high - low) or 1.0
    height = _ROW * len(rows) + 30
    notes = 20 + int(CHARACTER_WIDTH * max(len(printable(row.note, MAX_CHARACTERS)) for row in rows))

    def at(value: float) -> float:
        return 5 + 90 * (value - low) / span

    parts = [
        f'<line x1="{at(middle):.3f}%" y1="4" x2="{at(middle):.3f}%" y2="{height - 22:.0f}" stroke="var(--faint)"/>',
        _text(f"{at(middle):.3f}%", height - 8, _number(middle), 'text-anchor="middle"'),
    ]
    for index, row in enumerate(rows):
        y = _ROW * index + 16
        parts += [
            f"<g>{tooltip([f'{row.name}: {_number(row.value)}, {_number(row.low)} to {_number(row.high)}'])}",
            text(-_NAMES, y + 4, row.name, longest=_LETTERS),
            f'<line x1="{at(row.low):.3f}%" y1="{y:.0f}" x2="{at(row.high):.3f}%" y2="{y:.0f}" stroke="var(--accent)" '
            'stroke-width="3"/>',
            f'<circle cx="{at(row.value):.3f}%" cy="{y:.0f}" r="5" {_ACCENT}/>',
            _text("100%", y + 4, row.note, 'dx="10"'),
            "</g>",
        ]
    return _svg(height, parts, "intervals", (_NAMES, notes))


def _axis(top: float, height: float, unit: str) -> list[str]:
    base = height - _BOTTOM
    return [
        f'<line x1="0" y1="{base:.0f}" x2="100%" y2="{base:.0f}" stroke="var(--line)"/>',
        text(-6, _TOP + 10, f"{_number(top)}", f'text-anchor="end" {_FAINT}'),
        text(-6, _TOP + 24, unit, f'text-anchor="end" {_FAINT}'),
        text(-6, base, "0", f'text-anchor="end" {_FAINT}'),
    ]


def _log_axis(low: float, high: float, height: float) -> list[str]:
    tall = height - _TOP - _BOTTOM
    parts: list[str] = []
    powers = range(math.ceil(low), math.floor(high) + 1)
    for power in powers if len(powers) <= 8 else powers[:: -(-len(powers) // 8)]:
        y = _TOP + tall - tall * (power - low) / (high - low)
        parts += [
            f'<line x1="0" y1="{y:.1f}" x2="100%" y2="{y:.1f}" stroke="var(--line)"/>',
            text(-6, y + 4, f"1e{power}", f'text-anchor="end" {_FAINT}'),
        ]
    return parts


def _number(value: float) -> str:
    return f"{value:.4g}"


def _text(x: str, y: float, line: str, attributes: str = "") -> str:
    """Like `text`, at a percentage of the width."""
    return f'<text x="{x}" y="{y:.0f}"{attributes and " "}{attributes}>{escape(printable(line, MAX_CHARACTERS))}</text>'


def _svg(height: float, parts: Sequence[str], what: str, margins: tuple[int, int] = (_LEFT, _RIGHT)) -> str:
    """As wide as the page, less margins left and right, into which labels reach."""
    return (
        f'<div style="padding: 0 {margins[1]}px 0 {margins[0]}px; min-width: {_MIN_WIDTH + sum(margins)}px">'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height:.0f}" style="overflow: visible" '
        f'role="img" aria-label="{escape(what)}" font-family="monospace" font-size="11">'
        + "".join(parts)
        + "</svg></div>"
    )
