"""Timelines: spans keep in or beside each other on each track, sums are right, and the page works in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drawing.page import page
from engine.drawing.timeline import Counter, Span, Timeline, Track, counter_of, tracks_of
from engine.drawing.timeline_page import SECTION, timeline_script, timeline_style
from tests.browser import needs_browser, open_page

HOSTILE = '</script><script>throw 1</script>"<b>&'
TIMES = st.tuples(st.integers(0, 60), st.integers(0, 25))


def is_nested(spans: Sequence[Span]) -> bool:
    """Whether of any two spans one lies in the other, or beside it."""
    return all(
        b.start_ns >= a.end_ns or b.end_ns <= a.end_ns for i, a in enumerate(spans) for b in spans[i + 1 :]
    ) and [s.start_ns for s in spans] == sorted(s.start_ns for s in spans)


@settings(max_examples=300, deadline=None)
@given(st.lists(TIMES, max_size=12))
def test_spans_of_a_track_never_overlap_in_part(times: list[tuple[int, int]]) -> None:
    spans = [Span(str(i), start, duration) for i, (start, duration) in enumerate(times)]
    tracks = tracks_of("t", spans)
    assert sorted(span.name for track in tracks for span in track.spans) == sorted(span.name for span in spans)
    assert all(is_nested(track.spans) for track in tracks)


def test_what_is_nested_stays_on_one_track() -> None:
    spans = [Span("outer", 0, 100), Span("first", 0, 40), Span("second", 40, 60), Span("next", 100, 5)]
    (track,) = tracks_of("t", reversed(spans))
    assert [span.name for span in track.spans] == ["outer", "first", "second", "next"]
    assert [track.name for track in tracks_of("t", [Span("a", 0, 10), Span("b", 5, 10)])] == ["t", "t (2)"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.integers(0, 9)), max_size=10))
def test_a_counter_is_the_sum_of_what_is_in_use(uses: list[tuple[int, int, int]]) -> None:
    counter = counter_of("c", [(start, start + duration, amount) for start, duration, amount in uses])
    for time in range(45):
        expected = sum(amount for start, duration, amount in uses if start <= time < start + duration)
        assert next((value for at, value in reversed(counter.values) if at <= time), 0) == expected
    assert [at for at, _ in counter.values] == sorted({at for at, _ in counter.values})


def timeline(name: str = "net") -> Timeline:
    spans = (
        Span("inference", 1_000, 100_000, "inference"),
        Span("wait", 1_000, 20_000, "wait"),
        Span(name, 21_000, 70_000, "Conv", {"kernel": name, "bytes in use": 4096}),
    )
    return Timeline(name, (Track(name, spans),), (Counter(name, ((1_000, 4096), (50_000, 0))),))


def page_of(shown: Timeline) -> str:
    return page("Timeline", [SECTION], style=timeline_style(), script=timeline_script(shown))


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_shows_details_of_spans(tmp_path: Path, width: int) -> None:
    script = """
    const canvas = document.getElementById("timeline-canvas"), press = (key) => canvas.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    const about = () => document.getElementById("timeline-about").textContent, seen = [];
    for (const key of ["n", "n", "n", "n"]) { press(key); seen.push(about()); }
    const before = timelineView.state.span;
    press("+"); press("ArrowRight");
    return [seen, timelineView.state.span < before]"""
    seen, is_closer = open_page(page_of(timeline()), tmp_path, script=script, width=width).value  # type: ignore
    assert [text.split(" ")[0] for text in seen] == ["inference", "wait", "net", "net"]
    assert seen[2] == "net on net: 70.0 µs, from 20.0 µs; kernel net; bytes in use 4.1 kB"
    assert is_closer


@needs_browser
@pytest.mark.parametrize("shown", [timeline(HOSTILE), Timeline("empty", ())], ids=["hostile", "empty"])
def test_no_name_and_no_lack_breaks_the_page(tmp_path: Path, shown: Timeline) -> None:
    script = "for (let i = 0; i < 3; i++) timelineView.step(1);"
    script += "return document.querySelectorAll('#timeline-about script').length"
    assert open_page(page_of(shown), tmp_path, script=script).value == 0
