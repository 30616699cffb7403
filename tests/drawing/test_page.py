"""A report is one file that any browser shows, that fetches nothing, and that no name in a model can change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.drawing.html import plain_table
from engine.drawing.page import page, paragraph, script_data, section
from tests.browser import needs_browser, open_page

NAME = '</script><script>alert("x")</script><b>&'


def test_text_is_escaped() -> None:
    found = page(NAME, [section(NAME, paragraph(NAME), plain_table([NAME], [[NAME]]))], script="")
    assert "<script>" not in found
    assert found.count("&lt;script&gt;") == 6  # the title twice, heading, paragraph, and both cells of the table


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_a_wide_report_fits_the_window(tmp_path: Path, width: int) -> None:
    rows = [["x" * 300, "name_of_a_node/" * 30, 1.5]]
    sections = [section("Rows", plain_table(["a", "b", "c"], rows, {2}), paragraph("y" * 500))]
    opened = open_page(page("A report", sections), tmp_path, width=width, script="return document.title")
    assert opened.value == "A report"


@needs_browser
def test_a_script_reads_its_data(tmp_path: Path) -> None:
    script = f"const data = {script_data(json.dumps([NAME, '<!--']))};\nwindow.data = data;\n"
    opened = open_page(page("Data", [], script=script), tmp_path, script="return window.data")
    assert opened.value == [NAME, "<!--"]


@needs_browser
@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("<script>undefined_function()</script>", "not defined"),
        ('<img src="http://127.0.0.1:9/x.png">', "blocked"),
        ('<script>fetch("http://127.0.0.1:9/")</script>', "blocked"),
        ('<div style="width: 3000px">x</div>', "wide"),
    ],
)
def test_the_browser_reports_a_bad_page(tmp_path: Path, part: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        open_page(page("A bad page", [part]), tmp_path)
