"""Compilations that are cancelled, and that tell how far they are."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import Core, Model
from engine.errors import Cancelled
from engine.limits import report_progress, watched
from engine.testing.networks import seeded_network

DEVICES = ("CPU", "TEMPLATE", "HETERO:CPU,TEMPLATE")


@pytest.fixture(scope="module")
def model() -> Model:
    return Core().read_model(seeded_network("squeezenet", small=True).model)


@pytest.mark.parametrize("device", DEVICES)
def test_progress_rises_and_says_what_is_done(model: Model, device: str) -> None:
    seen: list[tuple[str, float]] = []
    Core().compile_model(model, device, progress=lambda what, share: seen.append((what, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.1
    assert 0.25 < shares[-1] <= 1
    assert seen[0][0] == "reading the model"
    assert any(what.startswith("pass ") for what, _ in seen)
    assert device == "TEMPLATE" or any(what.startswith("lowering ") for what, _ in seen)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_cancelled_compilation_ends_where_it_is(model: Model, device: str, after: int) -> None:
    """And the model, the core and later compilations are as before."""
    core, cancel, steps = Core(), threading.Event(), 0

    def progress(what: str, share: float) -> None:
        nonlocal steps
        steps += 1
        if steps > after:
            cancel.set()

    before = str(model)
    with pytest.raises(Cancelled, match="the compilation was cancelled"):
        core.compile_model(model, device, cancel=cancel, progress=progress)
    assert steps == after + 1
    assert str(model) == before
    inputs = seeded_network("squeezenet", small=True).inputs
    assert np.isfinite(core.compile_model(model, device)(inputs)[0]).all()


def test_what_was_cancelled_is_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(seeded_network("mlp", small=True).model, path)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        Core().compile_model(path, "CPU", {"CACHE_DIR": str(tmp_path / "cache")}, cancel=cancel)
    assert not [*tmp_path.glob("cache/*.blob")]


def test_an_exception_in_progress_ends_the_compilation(model: Model) -> None:
    def progress(what: str, share: float) -> None:
        raise ValueError("no room for a bar")

    with pytest.raises(Cancelled, match=r"ended by its `progress`: ValueError: no room for a bar") as caught:
        Core().compile_model(model, "CPU", progress=progress)
    assert isinstance(caught.value.__cause__, ValueError)


def test_other_threads_are_not_watched() -> None:
    seen: list[str] = []
    with watched(None, lambda what, share: seen.append(what)):
        other = threading.Thread(target=report_progress, args=("read", "elsewhere"))
        other.start()
        other.join()
        report_progress("read", "here")
    report_progress("read", "afterwards")
    assert seen == ["here"]
