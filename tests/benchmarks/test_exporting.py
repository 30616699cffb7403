"""The sweep over exported networks: that it notices wrong results and other nodes, or its table misleads."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import exporting.check  # noqa: E402
from exporting.check import Checked, check, inputs_of, tolerance_of  # noqa: E402
from exporting.recipe import Recipe, Recipes  # noqa: E402
from exporting.recipes.all_recipes import RECIPES  # noqa: E402
from exporting.report import BEGIN, END, page_with, ratio_of, read_json, tables, write_json  # noqa: E402

from engine import Core  # noqa: E402

NETWORK = ROOT / "tests" / "fixtures" / "architectures" / "gat.script16.dynamic.onnx"


def test_opsets_are_spread_over_the_recipes() -> None:
    torch = [recipe for recipe in RECIPES.values() if "script" in recipe.exporters and "dynamo" in recipe.exporters]
    assert len(torch) >= 60
    assert {recipe.opsets("script")[0] for recipe in torch} == set(range(13, 21))
    assert {recipe.opsets("dynamo")[0] for recipe in torch} == set(range(18, 25))
    assert sorted(torch[0].opsets("dynamo")) == list(range(18, 25))


def test_a_name_is_taken_once() -> None:
    recipes = Recipes("text")
    recipes.add("bert", lambda scale: None)
    with pytest.raises(ValueError, match="two recipes are named bert"):
        recipes.add("bert", lambda scale: None)


def test_a_right_network_is_compared_at_other_lengths_too() -> None:
    found = check(NETWORK, Core(), "CPU")
    assert (found.problem, found.lengths) == ("", "edges")
    assert found.nodes > 0
    assert 0 < found.error <= found.tolerance < 1e-4


def test_a_wrong_result_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer runs a network whose weights differ a little."""
    changed = onnx.load(NETWORK)
    tensor = next(each for each in changed.graph.initializer if each.name == "inner.left.weight")
    values = onnx.numpy_helper.to_array(tensor) * np.float32(1.001)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(changed, tmp_path / "other.onnx")
    shutil.copy(NETWORK.with_suffix(".npz"), tmp_path / "other.npz")
    other = exporting.check._session(tmp_path / "other.onnx")
    monkeypatch.setattr(exporting.check, "_session", lambda path: other)
    assert "deviates by" in check(NETWORK, Core(), "CPU").problem


def test_the_tolerance_grows_with_the_length_of_sums() -> None:
    assert 1e-7 < tolerance_of(NETWORK) < 1e-4
    assert set(inputs_of(NETWORK)) == {"nodes", "edges"}


def test_the_table_has_a_row_for_each_network_and_the_operators_that_are_not_native() -> None:
    found = [
        Checked("bert.script14.dynamic", nodes=10, milliseconds={"engine": 2.0, "onnxruntime": 3.0, "openvino": 4.0}),
        Checked("bert.dynamo22.static", "wrong", nodes=5, others=Counter({("Loop", "reference: no kernel"): 2})),
    ]
    recipes = {"bert": Recipe("bert", "text", lambda scale: None)}
    text = tables(found, recipes)
    assert "2 files of 1 networks: 1 right" in text
    assert "script14 dynamic, dynamo22 static" in text
    assert "right; wrong" in text
    assert "2 Loop of 15" in text
    assert "1.50x, -" in text
    assert ratio_of(found[1]) is None
    page = page_with(f"a\n{BEGIN}\nold\n{END}\nb", found, recipes)
    assert page.startswith("a\n")
    assert page.endswith("\nb")
    assert "old" not in page
    with pytest.raises(ValueError, match="no lines"):
        page_with("a", found, recipes)


def test_a_check_of_some_networks_keeps_the_findings_of_others(tmp_path: Path) -> None:
    """`check --only X --write PAGE` in a folder that has them; in another one, it refuses to drop rows."""
    names = ("bert", "gpt2")
    found = [
        Checked(f"{name}.dynamo22.static", others=Counter({("Loop", "no kernel"): 2}), scales={1: 2.0})
        for name in names
    ]
    recipes = {name: Recipe(name, "text", lambda scale: None) for name in names}
    write_json(tmp_path / "results.json", found)
    assert read_json(tmp_path / "results.json") == found
    assert read_json(tmp_path / "none.json") == []
    page = page_with(f"{BEGIN}\n{END}", found, recipes)
    assert page_with(page, found, recipes) == page
    with pytest.raises(ValueError, match="rows of gpt2, which were not checked"):
        page_with(page, found[:1], recipes)


def test_errors_are_relative_to_what_a_clip_cuts_off(tmp_path: Path) -> None:
    """An output between 0 and 1 has the rounding errors of the larger values that it was clipped from."""
    nodes = [onnx.helper.make_node("Mul", ["x", "ten"], ["y"]), onnx.helper.make_node("Clip", ["y", "", "one"], ["z"])]
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xz"]
    constants = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in (("ten", 10), ("one", 1))]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9),
              tmp_path / "clip.onnx")  # fmt: skip
    np.savez(tmp_path / "clip.npz", x=np.array([0.01, 0.5, -3], np.float32))
    found = check(tmp_path / "clip.onnx", Core(), "CPU")
    assert (found.problem, found.scales) == ("", {0: 30.0})
