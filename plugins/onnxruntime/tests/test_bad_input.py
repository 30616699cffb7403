"""A runtime that is missing, or that does not do as it promised."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import DeviceError, DeviceNotFoundError, EngineError, PropertyError, UnsupportedError
from engine.ir import Model, Parameter, Result, f32


def negation() -> Model:
    x = Parameter(f32, [4], "x")
    return Model([Result(ops.Neg(x), "y"), Result(ops.Abs(x), "z")], [x])


@pytest.mark.parametrize("left", [None, "a folder without content"])
def test_a_missing_runtime_is_an_error_that_says_what_to_install(
    left: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uninstalling one of two distributions of the package leaves such a folder."""
    from engine.cli.main import main

    missing: Any = None if left is None else type(sys)("onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", missing)
    core = Core()
    for attempt in (core.compile_model, core.query_model):
        with pytest.raises(DeviceNotFoundError, match=r"pip install onnxruntime, or onnxruntime-gpu.*never both"):
            attempt(negation(), "ONNXRUNTIME")
    assert "ONNXRUNTIME" not in core.available_devices
    assert main(["devices"]) == 0
    assert "ONNXRUNTIME cannot be used: the runtime onnxruntime cannot be imported" in capsys.readouterr().out
    assert core.compile_model(negation(), "HETERO:CPU")({"x": np.ones(4, np.float32)})["y"].tolist() == [-1] * 4


Change = Callable[[list[Any]], list[Any]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values[:1], "returned 1 outputs; expected 2"),
        (lambda values: [values[0].astype(np.float64), values[1]], "float64"),
        (lambda values: [values[0][:3], values[1]], r"\[3\]|\(3,\)"),
        (lambda values: [None, values[1]], "None"),
    ],
    ids=["too few outputs", "another type", "another shape", "nothing"],
)
def test_a_runtime_that_returns_something_else(change: Change, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    request = Core().compile_model(negation(), "ONNXRUNTIME").create_infer_request()
    run = onnxruntime.InferenceSession.run
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime.InferenceSession, "run", lambda *args: change(run(*args)))
        with pytest.raises(DeviceError, match=words) as caught:
            request.infer({"x": np.ones(4, np.float32)})
        assert f"onnxruntime {onnxruntime.__version__}" in str(caught.value)
    assert request.infer({"x": np.ones(4, np.float32)})["y"].tolist() == [-1] * 4


def test_a_provider_that_does_not_start_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    core = Core()
    assert core.get_property("ONNXRUNTIME", "AVAILABLE_DEVICES") == ("CPU", "CUDA"), "CPU always works"
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(EngineError, match=r"ONNXRUNTIME\.CPU"),
    ):
        core.compile_model(negation(), "ONNXRUNTIME.CUDA")


def test_options_of_the_runtime() -> None:
    pytest.importorskip("onnxruntime")
    core, inputs = Core(), {"x": np.ones(4, np.float32)}
    network = core.compile_model(
        negation(), "ONNXRUNTIME", {"ONNXRUNTIME_SESSION_OPTIONS": {"session.intra_op.allow_spinning": False}}
    )
    assert network(inputs)["y"].tolist() == [-1] * 4
    with pytest.raises(UnsupportedError, match=r"ONNXRUNTIME\.CPU has no tf32"):
        core.compile_model(negation(), "ONNXRUNTIME", {"INFERENCE_PRECISION_HINT": "tf32"})
    with pytest.raises(PropertyError, match="ONNXRUNTIME_SESSION_OPTIONS"):
        core.compile_model(negation(), "ONNXRUNTIME", {"ONNXRUNTIME_SESSION_OPTIONS": "spin"})


def test_a_query_is_about_one_provider_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that only the CPU could run would otherwise seem to run on the provider."""
    onnxruntime = pytest.importorskip("onnxruntime")
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    asked: list[tuple[list[str], str]] = []

    def refusing(source: object, options: Any, providers: list[tuple[str, Any]]) -> None:
        asked.append(
            ([name for name, _ in providers], options.get_session_config_entry("session.disable_cpu_ep_fallback"))
        )
        raise RuntimeError("no kernel")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refusing)
    answer = Core().query_model(negation(), "ONNXRUNTIME.CUDA")
    assert all("no kernel" in support.reason for support in answer.nodes.values())
    assert asked == [(["CUDAExecutionProvider"], "1")] * 2
