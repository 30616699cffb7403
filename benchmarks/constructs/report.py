"""The page of constructs: a table for each exporter, and the figures of all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from comparison.report import markdown
from publishing.report import between

from constructs.check import Checked

MARKS: Final = ("<!-- constructs -->", "<!-- end of constructs -->")
_HEADING: Final = "### "
_HEADER: Final = ("construct", "opset", "here", "onnxruntime", "nodes evaluated")
_RIGHT: Final = "right"
_UNLIKE: Final = "as onnxruntime; the original computes otherwise: "
_ALIKE: Final = "refused alike: "
_NOT_EXPORTED: Final = "the exporter refuses: "


def page_with(page: str, found: Sequence[Checked]) -> str:
    """`page` with the tables of `found` between the marks; the tables of other exporters stay, and count.

    Raises `ValueError` if it does not have the marks.
    """
    parts = _tables_in(page) | tables(found)
    return between(page, MARKS, "\n\n".join([summary(parts.values()), *parts.values()]))


def summary(parts: Iterable[str]) -> str:
    """One paragraph of counts, of the rows of tables."""
    rows = [row for part in parts for row in _rows_of(part)]
    exported = [(here, peer) for _, _, here, peer, _ in rows if not here.startswith(_NOT_EXPORTED)]
    right = sum(here == _RIGHT or here.startswith(_UNLIKE) for here, _ in exported)
    alike = sum(here.startswith(_ALIKE) for here, _ in exported)
    theirs = sum(peer == _RIGHT for _, peer in exported)
    return (f"{len(rows)} constructs; exporters write {len(exported)}: {right} of these run here and are right "
            f"on every device; {alike} are refused here and by onnxruntime, which runs {theirs}.")  # fmt: skip


def tables(found: Sequence[Checked]) -> dict[str, str]:
    """A heading and a table for each exporter, by its name."""
    parts = {}
    for exporter in dict.fromkeys(each.exporter for each in found):
        mine = [each for each in found if each.exporter == exporter]
        versions = {name: version for each in mine for name, version in each.versions.items()}
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        parts[exporter] = f"{_HEADING}{exporter}\n\n{listed}\n\n{markdown(_HEADER, [_row(each) for each in mine])}"
    return parts


def _tables_in(page: str) -> dict[str, str]:
    """The result of `tables` for a page."""
    inside = page.partition(MARKS[0])[2].partition(MARKS[1])[0]
    parts = inside.split(f"\n{_HEADING}")[1:]
    return {part.partition("\n")[0]: f"{_HEADING}{part.strip()}" for part in parts}


def _rows_of(part: str) -> list[list[str]]:
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def _row(each: Checked) -> list[str]:
    if each.not_exported:
        return [each.name, "", f"{_NOT_EXPORTED}{_plain(each.not_exported)}", "", ""]
    problems = "; ".join(f"{device}: {problem}" for device, problem in each.devices.items() if problem)
    if each.is_refused_alike:
        problems = _ALIKE + problems
    right = f"{_UNLIKE}{each.unlike}" if each.unlike else _RIGHT
    return [
        each.name,
        str(each.opset),
        _plain(problems or right),
        _plain(each.peer or _RIGHT),
        str(each.evaluated or ""),
    ]


def _plain(text: str) -> str:
    """Text for a cell, without the colours of a terminal, addresses and places in the sources of others."""
    text = re.sub(r" at 0x[0-9a-f]+|/onnxruntime_src/\S+ |\[ONNXRuntimeError\] : \d+ : ", "", text)
    visible = "".join(c if c.isprintable() else " " for c in text).replace("|", "/")
    return (visible[:160] + "...") if len(visible) > 160 else visible
