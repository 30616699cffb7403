"""Small charts for reports: bars, values in order, and intervals. SVG that takes the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from engine.drawing.svg import text, tooltip

WIDTH = 760.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 12.0, 10.0, 34.0
_ROW = 22.0
_NAMES = 230.0
_LETTERS = 30
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
    inner, tall = WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    top = max(value for _, value in bars) or 1.0
    step = inner / len(bars)
    parts = _axis(top, height, unit)
    for index, (name, value) in enumerate(bars):
        size = tall * value / top
        parts.append(
            f'<rect x="{_LEFT + index * step + 1:.1f}" y="{_TOP + tall - size:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{size:.1f}" {_ACCENT}>{tooltip([f"{name}: {_number(value)} {unit}"])}</rect>'
        )
    parts.append(text(_LEFT, height - 12, bars[0][0]))
    if len(bars) > 1:
        parts.append(text(WIDTH - _RIGHT, height - 12, bars[-1][0], 'text-anchor="end"'))
    return _svg(height, parts, f"bars in {unit}")


def point_chart(values: Sequence[float], *, unit: str, below: str, height: float = 200.0, is_log: bool = False) -> str:
    """Values in order as points; a logarithmic axis leaves out zeros. `below` says what the order is."""
    shown = [(i, v) for i, v in enumerate(values) if math.isfinite(v) and (v > 0 or not is_log)]
    if not shown:
        return ""
    tall, inner = height - _TOP - _BOTTOM, WIDTH - _LEFT - _RIGHT
    low, high = (min(v for _, v in shown), max(v for _, v in shown)) if is_log else (0.0, max(v for _, v in shown))
    low, high = (math.log10(low) - 0.05, math.log10(high) + 0.05) if is_log else (low, high or 1.0)
    parts = _axis(high, height, unit) if not is_log else _log_axis(low, high, height)
    for index, value in shown:
        level = (math.log10(value) if is_log else value) - low
        x = _LEFT + inner * (index + 0.5) / len(values)
        y = _TOP + tall - tall * level / (high - low)
        tip = tooltip([f"{index}: {_number(value)} {unit}"])
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" {_ACCENT}>{tip}</circle>')
    parts.append(text(_LEFT, height - 12, f"{below}; {unit}" if is_log else below))
    return _svg(height, parts, f"values in {unit}, {below}")


def interval_chart(rows: Sequence[Interval], *, middle: float = 1.0) -> str:
    """One row for each interval, with a line at `middle`, which an interval that holds it does not differ from."""
    if not rows:
        return ""
    low = min(middle, *(row.low for row in rows))
    high = max(middle, *(row.high for row in rows))
    span = (high - low) or 1.0
    height = _ROW * len(rows) + 30

    def at(value: float) -> float:
        return _NAMES + (WIDTH - _NAMES - 110) * (0.05 + 0.9 * (value - low) / span)

    parts = [
        f'<line x1="{at(middle):.1f}" y1="4" x2="{at(middle):.1f}" y2="{height - 22:.0f}" stroke="var(--faint)"/>',
        text(at(middle) - 4, height - 8, _number(middle)),
    ]
    for index, row in enumerate(rows):
        y = _ROW * index + 16
        parts += [
            f"<g>{tooltip([f'{row.name}: {_number(row.value)}, {_number(row.low)} to {_number(row.high)}'])}",
            text(0, y + 4, row.name, longest=_LETTERS),
            f'<line x1="{at(row.low):.1f}" y1="{y:.0f}" x2="{at(row.high):.1f}" y2="{y:.0f}" stroke="var(--accent)" '
            'stroke-width="3"/>',
            f'<circle cx="{at(row.value):.1f}" cy="{y:.0f}" r="5" {_ACCENT}/>',
            text(WIDTH - 100, y + 4, row.note),
            "</g>",
        ]
    return _svg(height, parts, "intervals")


def _axis(top: float, height: float, unit: str) -> list[str]:
    base = height - _BOTTOM
    return [
        f'<line x1="{_LEFT:.0f}" y1="{base:.0f}" x2="{WIDTH - _RIGHT:.0f}" y2="{base:.0f}" stroke="var(--line)"/>',
        text(_LEFT - 6, _TOP + 10, f"{_number(top)}", f'text-anchor="end" {_FAINT}'),
        text(_LEFT - 6, _TOP + 24, unit, f'text-anchor="end" {_FAINT}'),
        text(_LEFT - 6, base, "0", f'text-anchor="end" {_FAINT}'),
    ]


def _log_axis(low: float, high: float, height: float) -> list[str]:
    tall = height - _TOP - _BOTTOM
    parts: list[str] = []
    powers = range(math.ceil(low), math.floor(high) + 1)
    for power in powers if len(powers) <= 8 else powers[:: -(-len(powers) // 8)]:
        y = _TOP + tall - tall * (power - low) / (high - low)
        parts += [
            f'<line x1="{_LEFT:.0f}" y1="{y:.1f}" x2="{WIDTH - _RIGHT:.0f}" y2="{y:.1f}" stroke="var(--line)"/>',
            text(_LEFT - 6, y + 4, f"1e{power}", f'text-anchor="end" {_FAINT}'),
        ]
    return parts


def _number(value: float) -> str:
    return f"{value:.4g}"


def _svg(height: float, parts: Sequence[str], what: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(what)}" font-family="monospace" font-size="11">' + "".join(parts) + "</svg>"
    )
