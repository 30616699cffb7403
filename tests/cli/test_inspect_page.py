"""`engine inspect --html` writes a page with what the command prints, which a browser shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.browser import needs_browser, open_page

Engine = Callable[..., Any]
WIDTHS = (500, 1280)


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["squeezenet.onnx", "squeezenet.blob"])
def test_the_page_of_a_model_and_of_a_blob(engine: Engine, files: Path, tmp_path: Path, name: str, width: int) -> None:
    target = tmp_path / "page.html"
    done = engine("inspect", files / name, "--html", target)
    assert (done.code, done.err) == (0, "")
    assert f"wrote {target}" in done.out
    script = "return [...document.querySelectorAll('h2, td')].map((each) => each.textContent)"
    shown = open_page(target.read_text(), tmp_path, script=script, width=width).value
    assert isinstance(shown, list)
    expected = ["f32[1,1000,1,1]", "Inputs", "Outputs"]
    expected += ["Conv", "65 operations"] if name.endswith(".onnx") else ["TEMPLATE", "Hashes", "graph"]
    assert [each for each in expected if each not in shown] == []


@needs_browser
def test_names_of_strangers_do_not_change_the_page(engine: Engine, tmp_path: Path) -> None:
    name = "</h1><script>document.title = 'x'</script>"
    ports = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [4]) for each in (name, "y")]
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"], name)], name, ports[:1], ports[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "model.onnx")
    assert engine("inspect", tmp_path / "model.onnx", "--html", tmp_path / "page.html").code == 0
    opened = open_page((tmp_path / "page.html").read_text(), tmp_path, script="return document.title")
    assert str(opened.value).startswith("</h1><script>")


def test_a_page_that_cannot_be_written(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("inspect", files / "basic.onnx", "--html", tmp_path / "missing" / "page.html")
    assert done.code == 2
    assert "does not exist" in done.err
    done = engine("inspect", files / "basic.onnx", "--html", files / "basic.onnx")
    assert done.code == 2
    assert "would replace" in done.err
