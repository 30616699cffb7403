"""Names of a stranger's model on the terminal: shown, not obeyed, and no line of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.cli.main import main

ATTACK = "a\x1b[2J\x1b]0;title\x07\nengine run: all is well\r\x00\u202egnp\u2066\x9b31m"
"""Clears the screen, sets a title, rings, pretends to be a line, returns, ends a C string, turns text round."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", [f"x{ATTACK}"], [f"t{ATTACK}"], name=f"relu{ATTACK}"),
        helper.make_node("Unique", [f"t{ATTACK}"], [f"y{ATTACK}"], name=f"unique{ATTACK}"),
    ]
    graph = helper.make_graph(
        nodes,
        f"net{ATTACK}",
        [helper.make_tensor_value_info(f"x{ATTACK}", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info(f"y{ATTACK}", TensorProto.FLOAT, None)],
    )
    notes = {"inputs": {f"x{ATTACK}": {"layout": ATTACK, "preprocess": {"steps": [ATTACK, 5]}}}}
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9, producer_name=ATTACK)
    made.metadata_props.add(key="engine.ports", value=json.dumps(notes))
    onnx.save(made, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["inspect", "MODEL"], 0),
        (["query", "MODEL", "-d", "CPU", "--nodes"], 0),
        (["query", "MODEL", "-d", "OPENCL", "--nodes"], 1),
        (["query", "MODEL", "-d", "HETERO:CPU,TEMPLATE", "--nodes"], 0),
        (["compile", "MODEL", "-d", "CPU", "-o", "BLOB"], 0),
        (["compile", "MODEL", "-d", "OPENCL", "-o", "BLOB"], 3),
        (["run", "MODEL", "-d", "TEMPLATE"], 0),
        (["compare", "MODEL", "MODEL", "-d", "CPU"], 0),
        (["benchmark", "MODEL", "-d", "CPU", "--count", "2"], 0),
    ],
    ids=lambda value: "-".join(value[:1] + value[3:4]) if isinstance(value, list) else "",
)
def test_names_are_shown_not_obeyed(
    command: list[str], code: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"MODEL": str(model), "BLOB": str(tmp_path / "net.blob")}
    assert main([places.get(word, word) for word in command]) == code
    printed = "".join(capsys.readouterr())
    hidden = {c for c in printed if not c.isprintable()} - {"\n"}
    assert not hidden, printed
    assert "\nengine run: all is well" not in printed


def test_a_blob_is_inspected_the_same(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blob = tmp_path / "net.blob"
    assert main(["compile", str(model), "-d", "CPU", "-o", str(blob)]) == 0
    assert main(["inspect", str(blob)]) == 0
    printed = capsys.readouterr().out
    assert not {c for c in printed if not c.isprintable()} - {"\n"}
    assert "xa\\x1b[2J" in printed
