"""`engine benchmark`: what is asked for is measured, printed within 80 columns, and kept with all to repeat it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.testing.behaviour.basic import BASIC
from engine.testing.behaviour.cases import CASES
from tests.browser import needs_browser, open_page

Engine = Callable[..., Any]
DYNAMIC = next(case.model for case in CASES if case.name == "dynamic_batch")
QUICK = ("--count", 12, "--rest", 0)


def test_the_json_holds_all_to_repeat_it(engine: Engine, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    values = tmp_path / "a.npy"
    np.save(values, BASIC.sample().inputs["a"])
    arguments = ("-i", f"a={values}", "--seed", 3, "-c", "NUM_STREAMS=2", "-n", 2)
    done = engine("benchmark", files / "basic.onnx", "-d", "TEMPLATE", *arguments, *QUICK, "--json", "-o", out)
    assert done.code == 0
    found = json.loads(done.out)
    assert found == json.loads(out.read_text())
    assert (found["requests"], found["inferences"], found["seed"], found["schema"]) == (2, 12, 3, 1)
    assert found["config"] == {"NUM_STREAMS": 2}
    assert found["inputs"]["a"] == {"type": "float32[2,3]", "source": str(values)}
    assert found["inputs"]["b"]["source"] == "random"
    assert {"cpu", "isa", "logical_cores", "clocks_mhz", "governor", "system"} <= found["machine"].keys()
    assert {"engine", "engine-plugin-template", "python", "numpy", "onnx"} <= found["versions"].keys()
    assert found["model"]["bytes"] == (files / "basic.onnx").stat().st_size
    assert len(found["model"]["sha256"]) == 64
    assert found["command"].startswith("engine ")
    assert sum(each["count"] for each in found["histogram"]) == 12


def test_short_options_are_settings(engine: Engine, files: Path) -> None:
    options = ("--hint", "throughput", "--streams", 2, "--threads", 1)
    found = json.loads(engine("benchmark", files / "basic.onnx", "-d", "CPU", *options, *QUICK, "--json").out)
    assert found["config"] == {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 1}


def test_everything_fits_eighty_columns(engine: Engine, files: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    model = files / "squeezenet.onnx"
    assert engine("benchmark", model, "-d", "CPU", "-n", 0, *QUICK, "-o", earlier).code == 0
    others = [each for what in ("ONNXRUNTIME", "CPU INFERENCE_NUM_THREADS=1", earlier) for each in ("--compare", what)]
    shown = ("--histogram", "--layers", 5, "--html", tmp_path / "report.html")
    done = engine("benchmark", model, "-d", "CPU", "--rounds", 6, "--keep", *QUICK, *others, *shown)
    assert done.code == 0, done.err
    # The path of a file is as long as its user makes it.
    assert [line for line in done.out.splitlines() if len(line) > 80 and not line.startswith("wrote ")] == []
    lines = done.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("LAYER"))
    assert len(lines[start + 1 :]) > 5
    assert all("f32" in line or "native" in line for line in lines[start + 1 : start + 6]), "kernels"
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("WHAT")) :]
    assert len(table) == 5
    assert any(line.startswith("ONNXRUNTIME") and line.split()[-2] in ("faster", "slower", "level") for line in table)


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_report_of_a_real_run_opens(engine: Engine, files: Path, tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    done = engine("benchmark", files / "squeezenet.onnx", "-d", "CPU", "-n", 0, *QUICK, "--layers", "--html", page)
    assert done.code == 0
    script = 'return document.querySelectorAll("section").length'
    assert open_page(page.read_text(), tmp_path, script=script, width=width).value == 5


def test_other_shapes_than_an_earlier_result_are_refused_before_measuring(
    engine: Engine, files: Path, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier.json"
    model = tmp_path / "dynamic.onnx"
    model.write_bytes(DYNAMIC.SerializeToString())
    assert engine("benchmark", model, "-d", "CPU", "--shape", "x=5,3", *QUICK, "-o", earlier).code == 0
    done = engine("benchmark", model, "-d", "CPU", "--shape", "x=6,3", "-t", 600, "--compare", earlier)
    assert done.code == 3
    assert "x float32[5,3]; this run has x float32[6,3]" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="limits of files are POSIX's")
@pytest.mark.parametrize(
    "arguments",
    [
        ("benchmark", "basic.blob", *QUICK, "-o"),
        pytest.param(("benchmark", "basic.blob", *QUICK, "--html"), marks=pytest.mark.slow),
        pytest.param(("diff", "basic.onnx", "-d", "CPU", "-d", "TEMPLATE", "--html"), marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_leaves_nothing_half_written(files: Path, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    out = tmp_path / "sub" / "found"
    out.parent.mkdir()
    code = (
        "import resource, sys; from engine.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-B", "-c", code, *map(str, arguments), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=files)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "too large" in done.stderr
    assert list(out.parent.iterdir()) == []


def test_an_image_and_raw_bytes_from_standard_input(
    engine: Engine, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (50, 40), (255, 0, 128)).save(tmp_path / "red.png")
    model = ("run", files / "squeezenet.onnx", "-d", "CPU", "--json")
    assert engine(*model, "-i", tmp_path / "red.png").code == 0
    pixels = np.full((1, 3, 224, 224), 0.25, np.float32)
    np.save(tmp_path / "x.npy", pixels)
    (tmp_path / "x.bin").write_bytes(pixels.tobytes())
    engine(*model, "-i", tmp_path / "x.npy", "-o", tmp_path / "expected.npz")
    for source in (tmp_path / "x.bin", "-"):
        with open(tmp_path / "x.bin") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert engine(*model, "-i", source, "-o", tmp_path / "found.npz").code == 0
        with np.load(tmp_path / "expected.npz") as expected, np.load(tmp_path / "found.npz") as found:
            assert all((expected[name] == found[name]).all() for name in expected)


def test_help_loads_nothing_that_is_slow() -> None:
    code = (
        "import sys; from engine.cli.main import make_parser; make_parser().format_help();"
        "modules = ('numpy', 'onnx', 'rich', 'engine.cli.benchmark', 'engine.ir');"
        "print([each for each in modules if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_terminal_gets_the_same_table_by_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    from engine.cli.terminal import progress_bar, show_table

    rows = [("[red]name\x1b[31m", "1.5", "faster"), ("b", "10.25", "slower")]
    show_table(rows, ("A", "MS", "VERDICT"), {1})
    plain = capsys.readouterr().out
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    show_table(rows, ("A", "MS", "VERDICT"), {1})
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [line.split() for line in plain.splitlines()]
    with progress_bar() as report:
        report("[red]half", 0.5)
    monkeypatch.setitem(sys.modules, "rich", None)
    show_table(rows, ("A", "MS", "VERDICT"), {1})
    assert capsys.readouterr().out == plain
