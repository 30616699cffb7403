"""The JSON object and the report: complete, refused where they do not compare, and shown as they are."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from engine.cli.benchmark import benchmark_page, compare_with_earlier
from engine.errors import InputError
from tests.browser import needs_browser, open_page

NAME = '</script><script>alert("x")</script><b>&'


@pytest.fixture
def document() -> dict[str, Any]:
    """A result as `engine benchmark --json` prints it, of a network with a hostile name."""
    blocks = [1.0 + 0.01 * i for i in range(10)]
    verdict = {"ratio": 0.5, "low": 0.4, "high": 0.7, "word": "slower", "alternating": True}
    return {
        "schema": 1, "file": "m.onnx", "network": NAME, "label": NAME, "device": ["CPU"], "config": {"A": NAME},
        "read_s": 0.1, "compile_s": 0.2, "first_inference_s": 0.3, "requests": 0, "inferences": 10, "duration_s": 0.01,
        "latency_ms": dict.fromkeys(("min", "median", "p90", "p99", "max"), 1.0), "throughput_per_s": 1000.0,
        "interrupted": True, "blocks_ms": blocks, "latencies_over_time_ms": blocks * 60,
        "histogram": [{"low": 1.0, "high": 1.5, "count": 9}, {"low": 1.5, "high": 9.0, "count": 1}],
        "started": "2026-01-01T00:00:00+00:00", "command": f"engine benchmark {NAME}", "seed": 0,
        "model": {"path": NAME, "bytes": 5, "sha256": "0" * 64},
        "inputs": {"x": {"type": "float32[1,3]", "source": NAME}},
        "machine": {"cpu": "A", "logical_cores": 2, "clocks_mhz": [1.0, 2.0], "governor": None},
        "versions": {"engine": "1"}, "peak_gflops": 100.0,
        "layers": [
            {"name": f"{NAME}{i}", "op_type": "Conv", "status": "native", "kernel": NAME, "milliseconds": 1.0,
             "share": 0.01, "operations": None if i % 2 else 1e6, "bytes": None if i % 2 else 1e6,
             "gflops": None if i % 2 else 1.0, "peak_share": None if i % 2 else 0.01}
            for i in range(100)
        ],
        "compared": [{"label": NAME * 3, "blocks_ms": blocks, "comparison": verdict, "output_difference": None}],
    }  # fmt: skip


def written(document: dict[str, Any], path: Path) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_an_earlier_result_is_compared(document: dict[str, Any], tmp_path: Path) -> None:
    earlier = copy.deepcopy(document)
    earlier["blocks_ms"] = [2 * value for value in document["blocks_ms"]]
    found = compare_with_earlier(written(earlier, tmp_path / "a.json"), document)
    assert found["comparison"]["word"] == "slower"
    assert found["comparison"]["ratio"] == pytest.approx(0.5)
    assert found["comparison"]["alternating"] is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": {"cpu": "B", "logical_cores": 2}}, ("another machine", "cpu B; here A", "measure again here")),
        ({"machine": {"cpu": "A", "logical_cores": 64}}, ("another machine", "logical_cores 64")),
        ({"inputs": {"x": {"type": "float32[8,3]"}}}, ("x float32[8,3]", "this run has x float32[1,3]", "--shape")),
        ({"inputs": {"y": {"type": "float32[1,3]"}}}, ("y float32[1,3]",)),
        ({"requests": 4}, ("4 requests in flight", "use -n 4")),
        ({"schema": 2}, ("version 2", "expected 1")),
        ({"schema": "x"}, ("not a result",)),
        ({"blocks_ms": []}, ("damaged",)),
        ({"blocks_ms": [0]}, ("damaged",)),
        ({"blocks_ms": [10**400] * 9}, ("damaged",)),
        ({"blocks_ms": [float("inf")] * 9}, ("damaged",)),
        ({"blocks_ms": [5e-324] * 9}, ("damaged",)),
        ({"machine": None}, ("damaged",)),
        ({"inputs": {"x": 3}}, ("damaged",)),
    ],
)
def test_what_does_not_compare_is_refused_in_one_line(
    change: dict[str, Any], words: tuple[str, ...], document: dict[str, Any], tmp_path: Path
) -> None:
    path = written(document | change, tmp_path / "a.json")
    with pytest.raises(InputError) as caught:
        compare_with_earlier(path, document)
    message = str(caught.value)
    assert message.startswith(path)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("content", ["", "[", "[]", "3", "{}"])
def test_a_file_that_is_no_result_is_named(content: str, document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json"):
        compare_with_earlier(str(tmp_path / "a.json"), document)


def test_the_report_escapes_what_it_shows(document: dict[str, Any]) -> None:
    page = benchmark_page(document)
    assert "<script>" not in page
    assert "Interrupted" in page


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_report_opens_in_a_browser(document: dict[str, Any], tmp_path: Path, width: int) -> None:
    script = (
        'return [...document.querySelectorAll("section")].map((each) => [each.querySelector("h2").textContent, '
        'each.querySelectorAll("svg rect, svg circle").length, each.querySelectorAll("tbody tr").length])'
    )
    opened = open_page(benchmark_page(document), tmp_path, script=script, width=width)
    found = {heading: (marks, rows) for heading, marks, rows in opened.value}  # type: ignore[attr-defined]
    assert found["Latencies"] == (602, 0)
    assert found["Comparison"] == (1, 2)
    assert found["Layers"] == (60, 100)
    assert found["To repeat it"][1] >= 10
