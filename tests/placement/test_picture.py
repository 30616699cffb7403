"""Pictures of placements: right in what they show, readable with one subgraph and with a thousand, safe to open."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport
from engine.placement.picture import to_html, to_svg, write_picture

SVG = "{http://www.w3.org/2000/svg}"


def groups(picture: str) -> dict[str, ElementTree.Element]:
    """The boxes of subgraphs, by their first line."""
    found = {}
    for group in ElementTree.fromstring(picture).findall(f"{SVG}g"):
        if group.find(f"{SVG}title") is not None:
            found["".join(group.findall(f"{SVG}text")[0].itertext())] = group
    return found


def edges(picture: str) -> dict[str, ElementTree.Element]:
    """The edges, by the first value that crosses along them."""
    paths = list(ElementTree.fromstring(picture).findall(f"{SVG}path"))
    return {tooltip(path).splitlines()[-1].partition(":")[0]: path for path in paths}


def tooltip(element: ElementTree.Element) -> str:
    return "".join(element.find(f"{SVG}title").itertext())  # type: ignore[union-attr]


def frame(group: ElementTree.Element) -> tuple[float, float, float, float]:
    box = group.find(f"{SVG}rect")
    assert box is not None
    return tuple(float(box.get(name, "")) for name in ("x", "y", "width", "height"))  # type: ignore[return-value]


def test_subgraphs_have_the_colours_of_their_devices(report: PlacementReport) -> None:
    picture = to_svg(report, "small")
    boxes = groups(picture)
    assert list(boxes) == ["0: GPU", "1: CPU", "2: GPU"]
    fills = [box.find(f"{SVG}rect").get("fill") for box in boxes.values()]  # type: ignore[union-attr]
    assert fills[0] == fills[2] != fills[1]
    shown = ["".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    for text in ("GPU", "CPU", "2.00 ms predicted", "1 operation", "2 operations, 1 evaluated on the host"):
        assert text in shown
    assert any(text.startswith("moving `relu`") for text in shown)
    for box in boxes.values():
        weights = [line.get("font-weight") for line in box.findall(f"{SVG}text")]
        assert weights == ["bold", *[None] * (len(weights) - 1)], "only the first line is a heading"


def test_operations_show_what_put_them_where_they_are(report: PlacementReport) -> None:
    operations = {}
    for group in groups(to_svg(report, "small")).values():
        for operation in group.findall(f"{SVG}g"):
            operations[tooltip(operation).splitlines()[0]] = operation
    assert list(operations) == ["Conv conv", "Relu relu", "NonZero nonzero", "Mul mul", "Add add"]
    borders = {name: operation.find(f"{SVG}rect").attrib for name, operation in operations.items()}  # type: ignore[union-attr]
    assert "stroke-width" in borders["Relu relu"]
    assert "stroke-dasharray" in borders["Mul mul"]
    assert "stroke" not in borders["Conv conv"]
    assert "GPU: refused, op: GPU has no kernel for NonZero" in tooltip(operations["NonZero nonzero"])
    styles = {name: operation.find(f"{SVG}text").get("font-style") for name, operation in operations.items()}  # type: ignore[union-attr]
    assert [name for name, style in styles.items() if style == "italic"] == ["Add add"]


@pytest.mark.parametrize("count", [1, 9, 200])
def test_operations_are_within_their_subgraph_and_apart(report: PlacementReport, count: int) -> None:
    subgraphs = (PlacedSubgraph(0, "GPU", tuple(f"n{i}" for i in range(count))),)
    picture = to_svg(replace(report, subgraphs=subgraphs, crossings=(), refusals=(), sources={}), "one")
    (box,) = groups(picture).values()
    left, top, width, height = frame(box)
    lines = [float(line.get("y", "")) for line in box.findall(f"{SVG}text")]
    operations = [frame(operation) for operation in box.findall(f"{SVG}g")]
    assert len(set(operations)) == count
    margin = min(x for x, _, _, _ in operations) - left
    assert margin > 0
    for x, y, w, h in operations:
        assert x + w + margin <= left + width, "as far from the right border as from the left one"
        assert max(lines) < y
        assert y + h <= top + height
    for operation in box.findall(f"{SVG}g"):
        (name,) = operation.findall(f"{SVG}text")
        x, y, w, h = frame(operation)
        assert x < float(name.get("x", "")) < x + w
        assert y < float(name.get("y", "")) < y + h, "a line of text is drawn from its foot on"
    columns = sorted({x for x, _, _, _ in operations})
    assert all(x + operations[0][2] <= after for x, after in pairwise(columns))
    rows = sorted({y for _, y, _, _ in operations})
    assert all(y + operations[0][3] <= after for y, after in pairwise(rows))


def test_an_edge_runs_from_the_middle_of_a_box_to_the_next(report: PlacementReport) -> None:
    subgraphs = tuple(PlacedSubgraph(i, "GPU", (f"n{i}",), (0,) if i else ()) for i in range(3))
    crossings = tuple(Crossing(f"v{i}", 0, i, 1000) for i in (1, 2))
    picture = to_svg(replace(report, subgraphs=subgraphs, crossings=crossings, refusals=(), sources={}), "fork")
    upper, *lower = map(frame, groups(picture).values())
    for path, target in zip(edges(picture).values(), lower, strict=True):
        x1, y1, x2, y2 = map(float, re.findall(r"^M(\S+) (\S+)C.* (\S+) (\S+)$", path.get("d", ""))[0])
        assert (x1, y1) == pytest.approx((upper[0] + upper[2] / 2, upper[1] + upper[3]), abs=2), (
            "coordinates are rounded"
        )
        assert x2 == pytest.approx(target[0] + target[2] / 2, abs=2)
        assert y1 < y2 < target[1], "the arrow's tip is drawn from the end on"


def test_edges_are_as_wide_as_what_crosses(report: PlacementReport) -> None:
    sizes = [0, 10_000, 1_000_000, 100_000_000]
    subgraphs = tuple(PlacedSubgraph(i, "GPU", (f"n{i}",), (i - 1,) if i else ()) for i in range(len(sizes) + 2))
    crossings = [Crossing(f"v{i}", i, i + 1, size) for i, size in enumerate([*sizes, None])]
    wide = replace(report, subgraphs=subgraphs, crossings=tuple(crossings), refusals=(), sources={})
    found = edges(to_svg(wide, "wide"))
    widths = [float(found[f"v{i}"].get("stroke-width", "")) for i in range(len(sizes))]
    assert all(a < b for a, b in pairwise(widths))
    assert found["v4"].get("stroke-dasharray"), "a size that is not known is not a size"
    assert not found["v3"].get("stroke-dasharray")
    assert "1.0 MB" in tooltip(found["v2"])


def test_a_dependency_without_a_value_is_an_edge(report: PlacementReport) -> None:
    found = edges(to_svg(replace(report, crossings=()), "small"))
    (path,) = found.values()
    assert path.get("stroke-dasharray")
    assert tooltip(path) == "depends on"


def test_values_between_two_subgraphs_share_an_edge(report: PlacementReport) -> None:
    both = (*report.crossings, Crossing("conv", 0, 1, 2_000_000))
    picture = ElementTree.fromstring(to_svg(replace(report, crossings=both), "small"))
    assert len(picture.findall(f"{SVG}path")) == 3
    assert "6.0 MB" in {"".join(text.itertext()) for text in picture.iter(f"{SVG}text")}


def test_a_thousand_subgraphs_are_boxes_that_neither_overlap_nor_hide_edges(chain: PlacementReport) -> None:
    picture = to_svg(chain, "chain")
    assert len(picture) < 2_000_000
    boxes = groups(picture)
    assert len(boxes) == 1000
    assert not any(group.findall(f"{SVG}g") for group in boxes.values()), "operations would be too many to see"
    frames = [frame(group) for group in boxes.values()]
    assert all(y1 + height1 < y2 for (_, y1, _, height1), (_, y2, _, _) in pairwise(frames))
    right = max(x + width for x, _, width, _ in frames)
    root = ElementTree.fromstring(picture)
    paths = [path.get("d", "") for path in root.findall(f"{SVG}path")]
    lanes = [float(match[1]) for path in paths if (match := re.match(r"M\S+ \S+?H(\d+)q", path))]
    assert len(paths) == sum(len(subgraph.depends_on) for subgraph in chain.subgraphs)
    assert len(lanes) == sum(s.index - other > 1 for s in chain.subgraphs for other in s.depends_on)
    assert min(lanes) > right
    assert max(lanes) < float(root.get("width", ""))
    assert max(y + height for _, y, _, height in frames) < float(root.get("height", ""))


def test_edges_beside_each_other_have_lanes_of_their_own(report: PlacementReport) -> None:
    subgraphs = tuple(PlacedSubgraph(i, "GPU", (f"n{i}",), tuple(range(i))) for i in range(5))
    crossings = tuple(Crossing(f"{o}-{s.index}", o, s.index, 1000) for s in subgraphs for o in s.depends_on)
    dense = replace(report, subgraphs=subgraphs, crossings=crossings, refusals=(), sources={})
    spans: dict[str, list[tuple[float, float]]] = {}
    for path in edges(to_svg(dense, "dense")).values():
        if match := re.match(r"M\S+ (\d+)H(\d+)q\S+ \S+ \S+ \S+V(\d+)q", path.get("d", "")):
            spans.setdefault(match[2], []).append((float(match[1]), float(match[3])))
    assert sum(map(len, spans.values())) == 6
    for lane in spans.values():
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(lane)))


@pytest.mark.parametrize("count", [0, 1])
def test_the_smallest_placements(report: PlacementReport, count: int) -> None:
    small = replace(report, subgraphs=report.subgraphs[:count], crossings=(), lower_bound=count)
    assert len(groups(to_svg(small, "small"))) == count


WILD = '</title><script>alert("1")</script>&\x00\ud800'


def test_names_are_text_and_nothing_is_loaded(report: PlacementReport) -> None:
    first, *rest = report.subgraphs
    wild = replace(
        report,
        subgraphs=(replace(first, nodes=(WILD, "relu"), op_types=(WILD, "Relu")), *rest),
        crossings=(Crossing(WILD, 0, 1, 7), *report.crossings),
        refusals=(NodeRefusal(WILD, WILD, "GPU", "refused", WILD, WILD),),
        findings=(WILD,),
    )
    for picture in (to_svg(wild, WILD), to_html(wild, WILD)):
        picture.encode()
        assert "<script" not in picture
        assert "\x00" not in picture
        links = re.findall(r"https?://[^\s\"'<]+|\b(?:src|href)\s*=|@import|url\((?!#)", picture)
        assert links == ["http://www.w3.org/2000/svg"]
    assert WILD[:16] in "".join(ElementTree.fromstring(to_svg(wild, WILD)).itertext())


def test_html_has_the_picture_and_the_whole_report(chain: PlacementReport) -> None:
    class Reader(HTMLParser):
        open_tags: list[str] = []
        text = ""

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "meta":
                self.open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            self.text += data

    reader = Reader()
    reader.feed(to_html(chain, "a <chain>"))
    assert reader.open_tags == []
    assert "Placement of a <chain>" in reader.text
    assert "`a999`: no 999" in reader.text


def test_a_picture_replaces_the_one_before_or_leaves_it(report: PlacementReport, tmp_path: Path) -> None:
    path = tmp_path / "placement.svg"
    path.write_text("before")
    broken = replace(report, subgraphs=(replace(report.subgraphs[0], device="NPU"),), crossings=())
    with pytest.raises(KeyError):
        write_picture(broken, path, "small")
    assert path.read_text() == "before"
    write_picture(report, path, "small")
    assert path.read_text(encoding="utf-8") == to_svg(report, "small")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match=r"ends with \.svg or \.html"):
        write_picture(report, tmp_path / "placement.png", "small")
