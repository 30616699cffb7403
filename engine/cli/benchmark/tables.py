"""The tables of a result, for terminals of 80 columns and for reports: a title, column names, rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.drawing.table import printable
from engine.startup import dataclass

_BAR = 30


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the columns in `right` are numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: frozenset[int]


def layer_table(document: Mapping[str, Any], top: int | None = None, width: int | None = 22) -> Table:
    """The layers that take longest, `top` of them, longest first; names of at most `width` characters."""
    layers = sorted(document["layers"], key=lambda layer: -layer["milliseconds"])[:top]
    rows = [
        (
            shortened(layer["name"], width),
            shortened(layer["kernel"] or f"{layer['op_type']} ({layer['status']})", width and 17),
            f"{layer['milliseconds']:.3f}",
            f"{layer['share']:.0%}",
            "-" if layer["gflops"] is None else f"{layer['gflops']:.1f}",
            "-" if layer["peak_share"] is None else f"{layer['peak_share']:.0%}",
            "-" if layer["bytes"] is None else f"{layer['bytes'] / 1e6:.1f}",
        )
        for layer in layers
    ]
    return Table(("LAYER", "KERNEL", "MS", "SHARE", "GFLOP/S", "PEAK", "MB"), rows, frozenset(range(2, 7)))


def comparison_table(document: Mapping[str, Any], width: int | None = 27) -> Table:
    """Each subject beside the base, as ratios: above 1, it is faster than the base."""
    base = [(shortened(document["label"], width), f"{_middle(document['blocks_ms']):.3f}", "1", "", "base", "")]
    rows = [_compared_row(each, width) for each in document["compared"]]
    return Table(("WHAT", "MS", "RATIO", "INTERVAL", "VERDICT", "OUTPUTS"), base + rows, frozenset({1, 2, 3, 5}))


def _compared_row(each: Mapping[str, Any], width: int | None) -> tuple[str, ...]:
    found = each["comparison"]
    interval = f"{found['low']:.2f}..{found['high']:.2f}" if found["low"] < found["high"] else "-"
    apart = each["output_difference"]
    return (
        shortened(each["label"], width),
        f"{_middle(each['blocks_ms']):.3f}",
        f"{found['ratio']:.2f}x",
        interval,
        found["word"],
        "-" if apart is None else f"{apart:.1e}",
    )


def histogram_lines(document: Mapping[str, Any]) -> list[str]:
    """The histogram as bars of text."""
    bins = document["histogram"]
    most = max((each["count"] for each in bins), default=0)
    lines = []
    for each in bins:
        bar = "#" * round(_BAR * each["count"] / most)
        lines.append(f"{each['low']:>10.3f} .. {each['high']:>10.3f} ms  {each['count']:>7}  {bar}".rstrip())
    return lines


def shortened(text: str, width: int | None) -> str:
    """At most `width` characters; of a longer name, the end, in which names of layers differ."""
    line = printable(text)
    return line if width is None or len(line) <= width else f"..{line[2 - width :]}"


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
