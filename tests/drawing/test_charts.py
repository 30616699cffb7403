"""Charts of reports: each mark is where its value belongs. If it fails, a report shows other figures than it states."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.drawing.charts import Interval, bar_chart, interval_chart, point_chart
from engine.drawing.page import page, section
from tests.browser import needs_browser, open_page

SVG = "{http://www.w3.org/2000/svg}"
ROUNDING = 0.11
"""Two coordinates of one digit after the point are each wrong by 0.05 at most."""


def parse(chart: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(chart).iter(f"{SVG}{tag}"))


def number(element: ElementTree.Element, name: str) -> float:
    """Across, a percentage of the width, or pixels beside it."""
    return float(element.get(name, "").removesuffix("%"))


def labels(chart: str) -> dict[str, ElementTree.Element]:
    return {"".join(each.itertext()): each for each in parse(chart, "text")}


def test_nothing_is_no_chart() -> None:
    assert bar_chart([], unit="ms") == point_chart([], unit="ms", below="runs") == interval_chart([]) == ""
    assert point_chart([0.0, float("nan")], unit="ms", below="runs", is_log=True) == ""


def test_bars_stand_on_the_axis_and_are_as_high_as_their_values() -> None:
    chart = bar_chart([("one", 1.0), ("none", 0.0), ("four", 4.0)], unit="runs")
    bars, (axis,) = parse(chart, "rect"), parse(chart, "line")
    heights = [number(bar, "height") for bar in bars]
    assert heights == pytest.approx([heights[2] / 4, 0, heights[2]], abs=ROUNDING)
    assert heights[2] > 100
    assert number(bars[2], "y") >= 0, "the highest is in the picture"
    for bar in bars:
        assert number(bar, "y") + number(bar, "height") == pytest.approx(number(axis, "y1"), abs=ROUNDING)
    for left, right in pairwise(bars):
        assert number(left, "x") + number(left, "width") <= number(right, "x")
    assert number(axis, "x1") <= number(bars[0], "x")
    assert number(bars[2], "x") + number(bars[2], "width") <= number(axis, "x2")
    assert "".join(bars[2].itertext()) == "four: 4 runs"
    assert number(labels(chart)["one"], "x") < number(labels(chart)["four"], "x")
    for name in ("4", "runs", "0"):
        assert labels(chart)[name].get("text-anchor") == "end"
        assert 0 < number(axis, "x1") - number(labels(chart)[name], "x") < 10, "beside the axis"


@pytest.mark.parametrize("is_log", [False, True])
def test_points_are_as_high_as_their_values_in_order(is_log: bool) -> None:
    chart = point_chart([1.0, 100.0, 10.0, 55.0], unit="ms", below="runs", is_log=is_log)
    points = parse(chart, "circle")
    assert all(number(left, "cx") < number(right, "cx") for left, right in pairwise(points))
    one, hundred, ten, half = (number(point, "cy") for point in points)
    assert hundred < half < ten < one, "larger values are higher"
    if is_log:
        assert one - ten == pytest.approx(ten - hundred, abs=2 * ROUNDING)
        lines = [number(line, "y1") for line in parse(chart, "line")]
        assert lines == pytest.approx([one, ten, hundred], abs=ROUNDING)
        for power, y in zip(("1e0", "1e1", "1e2"), lines, strict=True):
            assert abs(number(labels(chart)[power], "y") - y) < 6
            assert 0 < number(parse(chart, "line")[0], "x1") - number(labels(chart)[power], "x") < 10
    else:
        assert half - hundred == pytest.approx((ten - hundred) / 2, abs=2 * ROUNDING)


def test_points_that_have_no_logarithm_leave_their_places_empty() -> None:
    chart = point_chart([1.0, 0.0, 2.0], unit="ms", below="runs", is_log=True)
    places = [number(point, "cx") for point in parse(point_chart([1.0, 1.0, 2.0], unit="ms", below="runs"), "circle")]
    assert [number(point, "cx") for point in parse(chart, "circle")] == [places[0], places[2]]


def test_marked_points_are_named_and_stand_out() -> None:
    """At any place, the label stays in the picture."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    for marked in range(5):
        chart = point_chart(values, unit="x", below="values", marks={marked: "first <bad>"})
        points, (line,) = parse(chart, "circle"), parse(chart, "line")[-1:]
        assert [point.get("fill") == "var(--bad)" for point in points] == [i == marked for i in range(5)]
        assert number(line, "x1") == number(line, "x2") == number(points[marked], "cx")
        assert "first <bad>" in "".join(points[marked].itertext())
        label = labels(chart)["first <bad>"]
        assert (label.get("text-anchor") == "end") is (number(points[marked], "cx") > 50)


@needs_browser
@pytest.mark.parametrize("width", [700, 1280, 1900])
def test_charts_take_the_width_of_the_page_and_text_keeps_its_size(tmp_path: Path, width: int) -> None:
    charts = [
        bar_chart([("one", 1.0), ("two", 2.0)], unit="runs"),
        point_chart([1.0, 2.0], unit="ms", below="runs", marks={1: "the second"}),
        interval_chart([Interval("faster", 0.5, 0.4, 0.6, "0.50x slower, by a word")]),
    ]
    script = """
    const page = document.querySelector("section").clientWidth, boxes = [...document.querySelectorAll(".scroll")];
    return boxes.map((box) => [box.firstElementChild.offsetWidth / page, box.scrollWidth <= box.clientWidth,
      [...box.querySelectorAll("text")].every((text) => {
        const at = text.getBoundingClientRect(), all = box.getBoundingClientRect();
        return at.left >= all.left && at.right <= all.right && at.height < 18; })]);"""
    opened = open_page(page("Charts", [section("Charts", *charts)]), tmp_path, script=script, width=width)
    assert opened.value == [[1, True, True]] * 3


def test_intervals_are_where_their_values_are() -> None:
    rows = [Interval("faster", 0.5, 0.4, 0.6, "yes"), Interval("equal", 1.1, 0.9, 1.4, "no")]
    chart = interval_chart(rows, middle=1.0)
    middle, *lines = parse(chart, "line")
    circles = parse(chart, "circle")
    assert number(middle, "x1") == number(middle, "x2")
    zero = number(lines[0], "x1")
    scale = (number(lines[1], "x2") - zero) / (1.4 - 0.4)
    assert scale > 50
    for row, line, circle in zip(rows, lines, circles, strict=True):
        found = [number(line, "x1"), number(circle, "cx"), number(line, "x2")]
        wanted = [zero + scale * (value - 0.4) for value in (row.low, row.value, row.high)]
        assert found == pytest.approx(wanted, abs=2 * ROUNDING)
        assert number(line, "y1") == number(line, "y2") == number(circle, "cy")
        name, note = labels(chart)[row.name], labels(chart)[row.note]
        assert abs(number(name, "y") - number(circle, "cy")) < 6
        assert number(name, "x") < found[0]
        assert found[2] < number(note, "x") == 100
        assert number(note, "dx") > 0
    assert number(middle, "x1") == pytest.approx(zero + scale * (1.0 - 0.4), abs=2 * ROUNDING)
    assert number(labels(chart)["1"], "x") == number(middle, "x1")
    assert number(circles[0], "cy") < number(circles[1], "cy")
    assert number(circles[1], "cy") < number(middle, "y2") < number(labels(chart)["1"], "y")
