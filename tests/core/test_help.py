"""`help` of an application's objects begins with code that uses them, and this code runs.

If this fails, a user who asks for help reads a plugin's hooks in alphabetical order, or code that does not work.
"""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import AsyncInferQueue, AsyncInferRequest, Core, InferResult, Model, RemoteContext, RemoteTensor, ops
from engine.hosting import HostedNetwork
from engine.ir import Constant, Parameter, f32
from engine.onnx import write_model
from engine.plugin_api import ExecutableNetwork, Port
from engine.runtime.overview import OVERVIEW

CLASSES = [
    Core, Model, HostedNetwork, AsyncInferRequest, AsyncInferQueue, InferResult, Port, RemoteContext, RemoteTensor,
]  # fmt: skip


def overview(cls: type) -> str:
    """The code of the overview in a class's docstring."""
    lines = inspect.cleandoc(cls.__doc__ or "").partition(OVERVIEW + "\n")[2].splitlines()
    end = next((i for i, line in enumerate(lines) if line and not line.startswith("    ")), len(lines))
    return inspect.cleandoc("\n".join(["", *lines[:end]]))


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the overviews use, and a folder with `model.onnx` and `network.blob`."""
    monkeypatch.chdir(tmp_path)
    x = Parameter(f32, [None, 2], "x")
    y = ops.Relu(ops.Add(x, Constant(np.float32([1, -1]))), friendly_name="relu")
    model, core = Model([y], [x], name="small"), Core()
    model.results[0].friendly_name = "y"
    write_model(model, "model.onnx")
    context = core.create_context("TEMPLATE")
    network = core.compile_model(model, context, {"PERF_COUNT": True})
    network.export_model("network.blob")
    array = np.arange(8, dtype=np.float32).reshape(4, 2)
    return {
        "AsyncInferQueue": AsyncInferQueue, "Core": Core, "array": array, "arrays": [array, array + 1],
        "buffer": np.empty_like(array), "context": context, "core": core, "f32": f32, "model": model,
        "network": network, "request": network.create_infer_request(),
    }  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_code_runs(cls: type, application: dict[str, Any]) -> None:
    code = overview(cls)
    assert code.count("\n") >= 3
    exec(compile(code, cls.__name__, "exec", dont_inherit=True), application)
    assert application["core"].available_devices


def held(application: dict[str, Any]) -> dict[str, object]:
    """The objects that an application holds: of the engine's classes, and of the plugins'."""
    core, model, network = (application[name] for name in ("core", "model", "network"))
    networks = {device: core.compile_model(model, device) for device in ("CPU", "HETERO:CPU,TEMPLATE")}
    return {
        **{name: application[name] for name in ("core", "model", "network", "context", "request")},
        **networks,
        "result": network(application["array"]),
        "port": network.inputs[0],
        "queue": AsyncInferQueue(network, 1),
        "tensor": application["context"].create_tensor(f32, [4, 2]),
    }


def test_help_begins_with_it(application: dict[str, Any]) -> None:
    for name, thing in held(application).items():
        (cls,) = [each for each in CLASSES if isinstance(thing, each)]
        text = pydoc.plain(pydoc.render_doc(thing))
        first = text.index(OVERVIEW)
        assert text.count(OVERVIEW) == 1, name
        assert first < 700, f"{name}: on the first page"
        for line in overview(cls).splitlines():
            assert line in text[first : text.index("Methods defined here")], f"{name}: {line}"


def test_the_docstring_of_a_plugin_stays() -> None:
    class Described(ExecutableNetwork):
        """A network of a plugin.

        Its details.
        """

    class Undescribed(ExecutableNetwork):
        pass

    described = (Described.__doc__ or "").split("\n\n")
    assert [described[0], described[1], described[-1]] == ["A network of a plugin.", OVERVIEW, "Its details."]
    assert Undescribed.__doc__ == HostedNetwork.__doc__
