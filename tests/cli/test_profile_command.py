"""`engine profile`: tables, traces and pages; one line for what cannot be, and no half-written file."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cli.commands.profile import EXAMPLES
from tests.browser import needs_browser, open_page
from tests.trace_reader import read_trace

Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    for suffix in ("onnx", "blob"):
        (folder / f"model.{suffix}").write_bytes((files / f"basic.{suffix}").read_bytes())
    return folder


@pytest.mark.parametrize("example", EXAMPLES.splitlines())
def test_every_example_works(engine: Engine, folder: Path, example: str) -> None:
    program, *arguments = shlex.split(example, comments=True)
    assert program == "engine"
    done = engine(*arguments, cwd=folder)
    assert (done.code, done.err) == (0, "")
    if "--json" not in arguments:
        assert all(len(line) <= 80 for line in done.out.splitlines())
        for text in ("STAGE", "EXECUTOR", "NODE", "KERNEL", "SHARE"):
            assert text in done.out


def test_a_trace_has_every_inference(engine: Engine, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    done = engine("profile", "model.onnx", "-d", "CPU", "--requests", 2, "--count", 5, "--trace", target, cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert f"wrote {target}" in done.out
    trace = read_trace(target.read_text(encoding="utf-8"))
    spans = [span for name, each in trace.spans.items() if re.fullmatch(r"request \d+", name) for span in each]
    assert sum(span["name"] == "inference" for span in spans) == 5
    assert "on CPU" in trace.process


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_shows_the_timeline_and_the_tables(engine: Engine, folder: Path, tmp_path: Path, width: int) -> None:
    target = tmp_path / "profile.html"
    assert engine("profile", "model.onnx", "-d", "HETERO:TEMPLATE,CPU", "--html", target, cwd=folder).code == 0
    script = """timelineView.step(1);
    return [document.body.innerText, document.getElementById("timeline-about").textContent]"""
    text, about = open_page(target.read_text(encoding="utf-8"), tmp_path, script=script, width=width).value  # type: ignore
    for part in ("Timeline", "Stages", "Nodes", "0: TEMPLATE", "10 inferences on HETERO:TEMPLATE,CPU (TEMPLATE)"):
        assert part in text
    assert about.startswith("inference on request 0")


def test_facts_for_programs(engine: Engine, folder: Path) -> None:
    facts = json.loads(engine("profile", "model.onnx", "-d", "CPU", "--count", 2, "--json", cwd=folder).out)
    assert (facts["inferences"], facts["devices"], facts["files"]) == (2, ["CPU"], [])
    assert all(node["kernels"] and node["mean_ns"] >= 0 for node in facts["nodes"])
    assert facts["mean_ns"] >= sum(stage["mean_ns"] for stage in facts["stages"])


def test_run_prints_the_table_with_perf_count(engine: Engine, folder: Path) -> None:
    assert "KERNEL" not in engine("run", "model.onnx", "-d", "CPU", cwd=folder).out
    done = engine("run", "model.onnx", "-d", "CPU", "-c", "PERF_COUNT=true", cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert "one inference takes" in done.out
    assert re.search(r"NODE +OPERATOR +KERNEL +TIME +SHARE", done.out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("model.onnx -d CPU --trace nowhere/trace.json", 2, "does not exist"),
        ("model.onnx -d CPU --trace .", 2, "this is a folder"),
        ("model.onnx -d CPU --html .", 2, "this is a folder"),
        ("model.onnx -d CPU --trace x --html x", 2, "the same file"),
        ("model.onnx -d CPU --trace /dev/full", 3, "cannot write /dev/full: No space left on device"),
        ("model.onnx -d CPU --html /dev/full", 3, "cannot write /dev/full: No space left on device"),
        ("model.onnx -d CPU --count 0", 2, "--count"),
        ("model.onnx -d CPU --requests -1", 2, "--requests"),
        ("nowhere.blob -d CPU", 3, "nowhere.blob"),
    ],
)
def test_what_cannot_be_is_refused(engine: Engine, folder: Path, arguments: str, code: int, words: str) -> None:
    before = sorted(folder.iterdir())
    done = engine("profile", *arguments.split(), cwd=folder)
    assert done.code == code
    assert words in done.err
    assert len(done.err.splitlines()) == 1 or code == 2
    assert sorted(folder.iterdir()) == before, "a file was left over"
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_full_disk_leaves_the_old_file(folder: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "old").write_text("old")
    command = f"ulimit -f 1; exec {sys.executable} -B -m engine profile {folder}/model.onnx -d CPU {option} old"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "engine profile: error: cannot write old: File too large\n"
    assert (tmp_path / "old").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["old"]
