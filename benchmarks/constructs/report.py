"""The page of constructs: a table for each exporter, and the figures of all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from comparison.report import markdown
from publishing.report import between

from constructs.check import Checked

MARKS = ("<!-- constructs -->", "<!-- end of constructs -->")


def page_with(page: str, found: Sequence[Checked]) -> str:
    """`page` with the tables between the marks. Raises `ValueError` if it does not have them."""
    return between(page, MARKS, "\n\n".join([summary(found), *tables(found)]))


def summary(found: Sequence[Checked]) -> str:
    """One paragraph of counts."""
    exported = [each for each in found if not each.not_exported]
    alike = sum(each.is_refused_alike for each in exported)
    right = sum(each.is_right for each in exported) - alike
    theirs = sum(not each.peer for each in exported)
    return (f"{len(found)} constructs; exporters write {len(exported)}: {right} of these run here and are right "
            f"on every device; {alike} are refused here and by onnxruntime, which runs {theirs}.")  # fmt: skip


def tables(found: Sequence[Checked]) -> list[str]:
    """A heading and a table for each exporter."""
    parts = []
    for exporter in dict.fromkeys(each.exporter for each in found):
        mine = [each for each in found if each.exporter == exporter]
        versions = {name: version for each in mine for name, version in each.versions.items()}
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        rows = [_row(each) for each in mine]
        parts.append(f"### {exporter}\n\n{listed}\n\n"
                     f"{markdown(['construct', 'opset', 'here', 'onnxruntime', 'nodes evaluated'], rows)}")  # fmt: skip
    return parts


def _row(each: Checked) -> list[str]:
    if each.not_exported:
        return [each.name, "", f"the exporter refuses: {_plain(each.not_exported)}", "", ""]
    problems = [f"{device}: {problem}" for device, problem in each.devices.items() if problem]
    right = f"as onnxruntime; the original computes otherwise: {each.unlike}" if each.unlike else "right"
    return [each.name, str(each.opset), _plain("; ".join(problems) or right), _plain(each.peer or "right"),
            str(each.evaluated or "")]  # fmt: skip


def _plain(text: str) -> str:
    """Text for a cell, without the colours of a terminal, addresses and places in the sources of others."""
    text = re.sub(r" at 0x[0-9a-f]+|/onnxruntime_src/\S+ |\[ONNXRuntimeError\] : \d+ : ", "", text)
    visible = "".join(c if c.isprintable() else " " for c in text).replace("|", "/")
    return (visible[:160] + "...") if len(visible) > 160 else visible
