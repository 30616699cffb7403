"""The findings, in words, as a table, as JSON and as a page with a picture of the error by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from engine.cli.diff.search import Difference
from engine.cli.diff.statistics import Gap, NodeDifference
from engine.drawing.charts import point_chart
from engine.drawing.html import plain_table
from engine.drawing.page import page, paragraph, section
from engine.drawing.table import printable

HEADER: Final = ("VALUE", "OPERATOR", "MAX ABS", "MAX REL", "UNITS", "OWN", "LIMIT")
RIGHT: Final = frozenset(range(2, 7))


def verdict(found: Difference) -> list[str]:
    """The findings, in a few lines: the first node that goes wrong, or why there is none."""
    examined, reference = found.labels
    if (first := found.first) is not None:
        assert first.own is not None
        lines = [f"first difference: {first.node} ({first.op_type}), value {first.name}"]
        lines.append(
            f"given the inputs that it has on {reference}, it is off by {_units(first.own)} on {examined}; "
            f"rounding explains {first.tolerance:.0f}"
        )
        return lines + ([first.own.problem] if first.own.problem else _hint(first))
    if not found.is_suspect:
        return [f"no difference beyond rounding in {_count(found)} values and {len(found.outputs)} outputs"]
    if found.is_propagated:
        return [
            "no node goes wrong by itself; the outputs are off since rounding adds up, or becomes a whole step of",
            "quantized values",
        ]
    if not any(each.is_beyond for each in found.nodes):
        return [
            "the outputs differ, but not when inner values are also outputs, which prevents fusions:",
            "a fusion, or what is compiled for it, goes wrong; see `engine passes` and docs/debugging.md",
        ]
    off = next(each for each in found.nodes if each.is_beyond)
    if off.own is None:
        return [f"the first value that is off is {off.name}; its node {off.node} ({off.op_type}) was not run alone"]
    return [
        "the outputs differ, but each node alone is right: rounding adds up, or a node goes wrong only beside",
        f"others, such as by a fusion; the first value beyond the rounding of one node is {off.name}",
    ]


def _hint(first: NodeDifference) -> list[str]:
    """Whether the error is as large as the rounding to a narrower type."""
    if first.element_type != "float32" or first.own is None or not math.isfinite(first.own.units):
        return []
    relative = first.own.units * 2**-23
    for name, bits in (("f16", 10), ("bf16", 7)):
        if 2 ** -(bits + 3) < relative < 2 ** -(bits - 1):
            return [f"that is about the rounding of {name}: does INFERENCE_PRECISION_HINT or the device use it?"]
    return []


def _count(found: Difference) -> int:
    return len(found.nodes)


def _units(each: Gap) -> str:
    return "other values, or another shape or type" if math.isinf(each.units) else f"{each.units:.3g} units of rounding"


def shown_nodes(found: Difference, top: int | None) -> list[NodeDifference]:
    """The `top` values to print: from the first that is beyond the rounding of its node, in order; without one, the
    worst.
    """
    beyond = [each for each in found.nodes if each.is_beyond or each.parts]
    return beyond[:top] if beyond else sorted(found.nodes, key=lambda each: -each.total.units)[:top]


def node_rows(nodes: Sequence[NodeDifference], width: int | None = 20) -> list[tuple[str, ...]]:
    """A row for each value, below `HEADER`."""
    return [
        (
            _short(each.name, width),
            _short(each.op_type, width and 14),
            _number(each.total.max_absolute),
            _number(each.total.max_relative),
            _number(each.total.units),
            "-" if each.own is None else _number(each.own.units),
            _number(each.tolerance) if each.is_judged else "random",
        )
        for each in nodes
    ]


def _short(text: str, width: int | None) -> str:
    line = printable(text)
    return line if width is None or len(line) <= width else f"..{line[2 - width :]}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if 0.001 <= value < 100_000 else f"{value:.1e}"


def describe(found: Difference) -> dict[str, Any]:
    """The result of a diff as values for JSON."""
    return {
        "examined": found.labels[0],
        "reference": found.labels[1],
        "outputs": [_described(each) for each in found.outputs],
        "nodes": [_described(each) for each in found.nodes],
        "first": None if found.first is None else _described(found.first),
        "skipped": found.skipped,
        "problems": found.problems,
        "verdict": " ".join(verdict(found)),
        "differs": found.differs,
    }


def _described(each: NodeDifference) -> dict[str, Any]:
    return {**asdict(each), "beyond": each.is_beyond, "parts": each.parts}


def diff_page(found: Difference, title: str) -> str:
    """A complete HTML document: the verdict, the error of every value in order, and a table of all."""
    kind = "bad" if found.differs else "good"
    lines = [paragraph(line, kind) for line in verdict(found)]
    lines += [paragraph(f"{found.skipped} values were not compared, since all do not fit into the memory that was "
                        "given.", "faint")] if found.skipped else []  # fmt: skip
    lines += [paragraph(problem, "faint") for problem in found.problems]
    worst = 1.1 * max((each.total.units for each in found.nodes if math.isfinite(each.total.units)), default=1.0)
    units = [each.total.units if math.isfinite(each.total.units) else worst for each in found.nodes]
    shares = [unit / each.tolerance if each.tolerance else unit for unit, each in zip(units, found.nodes, strict=True)]
    marked = found.first or next((each for each in found.nodes if each.is_beyond), None)
    marks = {}
    if marked is not None:
        what = "first difference" if found.first is not None else "first value that is off"
        marks = {place: f"{what}: {marked.name}" for place, each in enumerate(found.nodes) if each.name == marked.name}
    header = [name.lower() for name in HEADER]
    columns = [*header, "type", "shape", "not finite"]
    rows = [
        (*row, each.element_type, "x".join(map(str, each.shape)), " / ".join(map(str, each.non_finite)))
        for row, each in zip(node_rows(found.nodes, None), found.nodes, strict=True)
    ]
    outputs = node_rows(found.outputs, None)
    return page(
        title,
        [
            section("Verdict", *lines),
            section(
                "Error by layer",
                point_chart(
                    shares, unit="times the limit", below="values in the order of the graph", is_log=True, marks=marks
                ),
                paragraph("Each point is a value: its largest difference divided by what rounding in its own node "
                          "explains. Errors of the nodes before it are in it. Values that are equal are left out.",
                          "faint"),
            ),
            section("Outputs of the model as it is", plain_table(header, outputs, RIGHT)),
            section(
                "Values inside",
                plain_table(columns, rows, RIGHT),
                paragraph("units: the largest difference divided by the element type's epsilon and the value's largest "
                          "magnitude; own: of the node alone, given the reference's inputs; limit: what rounding in "
                          "the node explains.", "faint"),
            ),
        ],
    )  # fmt: skip
