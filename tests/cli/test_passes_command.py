"""`engine passes`: the list is whole, and an explanation says what a pass author needs to know."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Parameter, f32
from engine.onnx import write_model
from engine.passes import list_passes

Engine = Callable[..., Any]


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """x -> Pad (amounts computed from constants) -> conv, and another convolution without padding."""
    x = Parameter(f32, [1, 2, 8, 8], "x")
    weights = Constant(np.zeros((2, 2, 3, 3), np.float32))
    amounts = ops.Neg(Constant(np.array([0, 0, -1, -1, 0, 0, -1, -1])), friendly_name="amounts")
    pad = ops.Pad(x, amounts, friendly_name="pad")
    convs = [ops.Conv(pad, weights, friendly_name="conv"), ops.Conv(x, weights, friendly_name="bare")]
    path = tmp_path / "padded.onnx"
    write_model(Model(convs, [x]), path)
    return path


def test_every_pass_is_listed_with_its_file(engine: Engine) -> None:
    done = engine("passes", "list")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["PASS", "KIND", "FILE", "WHAT", "IT", "DOES"]
    assert {line.split()[0] for line in lines[1:]} >= {info.name for info in list_passes()}
    rows = json.loads(engine("passes", "list", "--json").out)["passes"]
    folding = next(row for row in rows if row["name"] == "ConstantFolding")
    assert folding["kind"] == "ModelPass"
    assert Path(folding["file"]).name == "constant_folding.py"
    assert folding["doc"].startswith("Evaluates operations")


def test_passes_of_plugins_are_listed_and_a_broken_plugin_is_reported(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in (
        ("listed_plugin", "from engine.passes import Validate\nclass OwnPass(Validate):\n    '''Does its own.'''\n"),
        ("missing_driver_plugin", "import a_driver_that_is_not_installed\n"),
    ):
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[engine.plugins]\nX{name.upper()} = {name}:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = engine("passes", "list")
    assert done.code == 0
    assert "OwnPass" in done.out
    assert "the passes of missing_driver_plugin are skipped" in done.err
    sys.modules.pop("listed_plugin", None)


def test_an_explanation_names_the_node_and_what_failed(engine: Engine, padded: Path) -> None:
    done = engine("passes", "explain", padded, "ConvBatchNormFusion", "bare")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "ConvBatchNormFusion does not match at Conv `bare`: wrap_type(BatchNormalization): "
        "expected BatchNormalization, found Conv `bare`\n"
    )


def test_a_match_is_tried_on_a_copy(engine: Engine, padded: Path) -> None:
    declined = engine("passes", "explain", padded, "PadConvFusion", "conv").out
    assert "the callback declines: it returned False" in declined, "the amounts are not constant yet"
    done = engine("passes", "explain", padded, "PadConvFusion", "conv", "--after", "ConstantFolding")
    assert "the callback changes the model there" in done.out
    found = json.loads(engine("passes", "explain", padded, "PadConvFusion", "--json", "--most", 1).out)
    assert found["pass"] == "PadConvFusion"
    assert len(found["explanations"]) == 1
    assert found["explanations"][0]["match"]["matched"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain"], 2, "takes a MODEL and a PASS"),
        (["explain", "{model}"], 2, "takes a MODEL and a PASS"),
        (["list", "{model}"], 2, "takes no further arguments"),
        (["explain", "{model}", "VisualizeTree"], 2, "VisualizeTree cannot be created without arguments"),
        (["explain", "{model}", "PadConvFusio"], 3, "did you mean PadConvFusion"),
        (["explain", "{model}", "ConstantFolding"], 3, "has no pattern to explain"),
        (["explain", "{model}", "PadConvFusion", "nowhere"], 3, "has no node `nowhere`"),
        (["show"], 2, "invalid choice"),
    ],
)
def test_wrong_use_is_reported(engine: Engine, padded: Path, arguments: list[str], code: int, message: str) -> None:
    done = engine("passes", *[a.format(model=padded) for a in arguments])
    assert done.code == code
    assert message in done.err
    assert done.out == ""
