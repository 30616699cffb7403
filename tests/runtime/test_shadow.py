"""Shadow mode: differences of another device are found, and nothing that it does reaches the live network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_template import TemplatePlugin

from engine import Core
from engine.errors import DeviceError, InferError, InputError
from engine.runtime import Shadow, ShadowDifference
from engine.testing.behaviour.cases import CASES

MODEL = next(case.model for case in CASES if case.name == "dynamic_batch")
X = np.ones((2, 3), np.float32)


class Liar:
    """The behaviour of the other device in each inference: it computes rightly, wrongly, fails, or waits."""

    def __init__(self) -> None:
        self.offset: float = 0.0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()


@pytest.fixture
def liar() -> Liar:
    return Liar()


@pytest.fixture
def networks(liar: Liar, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """The model on TEMPLATE, and on a device that lies; the live one first."""
    onnx.save(MODEL, tmp_path / "model.onnx")
    core = Core()
    core.register_plugin("LIAR", TemplatePlugin)
    live = core.compile_model(tmp_path / "model.onnx", "TEMPLATE")
    other = core.compile_model(tmp_path / "model.onnx", "LIAR")
    make = other.create_infer_request_impl

    def lying() -> Any:
        request = make()
        compute = request.infer_postprocess

        def infer_postprocess() -> None:
            liar.begun.set()
            assert liar.gate.wait(60)
            if liar.error is not None:
                raise liar.error
            compute()
            for value in request._outputs:
                value += np.float32(liar.offset)

        request.infer_postprocess = infer_postprocess
        return request

    other.create_infer_request_impl = lying
    yield live, other
    liar.gate.set()


@pytest.mark.parametrize("way", ["call", "request", "start_async", "submit"])
def test_a_lie_is_found_however_an_inference_is_run(networks: Any, liar: Liar, way: str) -> None:
    live, other = networks
    request = live.create_infer_request()  # before the shadow: it takes part all the same
    liar.offset = 0.5
    told: list[ShadowDifference] = []
    with live.shadow(other, sample=1, on_difference=told.append) as shadow:
        if way == "call":
            result = live({"x": X})
        elif way == "request":
            result = request.infer({"x": X})
        elif way == "start_async":
            request.start_async({"x": X})
            request.wait()
            result = request.results
        else:
            result = live.submit({"x": X}).result()
    found = shadow.statistics
    assert (found.inferences, found.sampled, found.compared, found.different, found.failed) == (1, 1, 1, 1, 0)
    assert found.max_absolute == {"y": pytest.approx(0.5)}
    (difference,) = told
    np.testing.assert_array_equal(difference.live["y"], result["y"])
    np.testing.assert_array_equal(difference.inputs["x"], X)
    assert difference.other["y"] is not difference.live["y"]
    assert difference.comparisons[0].mismatches == result["y"].size


def test_equal_results_are_no_difference(networks: Any) -> None:
    live, other = networks
    with live.shadow(other, sample=1, queue=20, on_difference=pytest.fail) as shadow:
        for _ in range(10):
            live({"x": X})
    assert (shadow.statistics.compared, shadow.statistics.different) == (10, 0)


def test_a_nan_is_not_forgotten(networks: Any, liar: Liar) -> None:
    live, other = networks
    with live.shadow(other, sample=1, queue=20) as shadow:
        for liar.offset in (0.5, np.nan, 0.5):
            live({"x": X})
            while shadow.statistics.compared + shadow.statistics.failed < shadow.statistics.sampled:
                time.sleep(0.001)
    assert (shadow.statistics.different, shadow.statistics.failed) == (3, 0)
    assert np.isnan(shadow.statistics.max_absolute["y"])


def test_what_the_application_changes_afterwards_is_not_compared(networks: Any, liar: Liar) -> None:
    live, other = networks
    liar.gate.clear()
    x = X.copy()
    shadow = live.shadow(other, sample=1)
    result = live({"x": x})
    x[...] = 99
    result["y"][...] = -1
    liar.gate.set()
    assert shadow.close()
    assert (shadow.statistics.compared, shadow.statistics.different) == (1, 0)


def test_the_live_network_never_waits_and_surplus_samples_are_dropped(networks: Any, liar: Liar) -> None:
    live, other = networks
    liar.gate.clear()
    shadow = live.shadow(other, sample=1, queue=2)
    live({"x": X})
    assert liar.begun.wait(60)
    for _ in range(9):
        live({"x": X})  # the other one is stuck
    found = shadow.statistics
    assert (found.inferences, found.sampled, found.dropped, found.compared) == (10, 10, 7, 0)
    assert shadow.close(timeout=0.01) is False
    liar.gate.set()
    assert shadow.close()
    assert shadow.statistics.compared == 1
    assert shadow.statistics.dropped == 9


@pytest.mark.parametrize("what", ["network", "callback"])
def test_a_failure_reaches_nobody_but_the_statistics(
    networks: Any, liar: Liar, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    live, other = networks
    callback = None
    if what == "network":
        liar.error = ValueError("broken")
    else:
        liar.offset = 1.0

        def callback(difference: ShadowDifference) -> None:
            raise ValueError("broken")

    with live.shadow(other, sample=1, queue=10, on_difference=callback) as shadow:
        results = [live({"x": X})["y"] for _ in range(3)]
    assert all((each == results[0]).all() for each in results)
    found = shadow.statistics
    assert found.failed == 3
    assert isinstance(found.last_error, DeviceError if what == "network" else ValueError)
    assert "broken" in str(found.last_error)
    assert sum("shadow of" in record.message for record in caplog.records) == 1, "logged once"


def test_a_share_is_sampled(networks: Any) -> None:
    live, other = networks
    with live.shadow(other, sample=0.25, seed=1, queue=1000) as shadow:
        for _ in range(200):
            live({"x": X})
    found = shadow.statistics
    assert found.inferences == 200
    assert 20 <= found.sampled <= 80
    assert found.compared == found.sampled
    with live.shadow(other, sample=0) as shadow:
        live({"x": X})
    assert shadow.statistics.sampled == 0


def test_output_tensors_of_the_user_are_skipped(networks: Any) -> None:
    live, other = networks
    request = live.create_infer_request()
    request.set_output_tensor("y", np.zeros((2, 2), np.float32))
    with live.shadow(other, sample=1) as shadow:
        request.infer({"x": X})
    assert (shadow.statistics.skipped, shadow.statistics.compared) == (1, 0)


def test_a_closed_shadow_sees_nothing_and_another_can_follow(networks: Any) -> None:
    live, other = networks
    shadow = live.shadow(other, sample=1)
    with pytest.raises(InferError, match="has a shadow already"):
        live.shadow(other)
    assert shadow.close()
    assert shadow.close()
    live({"x": X})
    assert shadow.statistics.inferences == 0
    with live.shadow(other, sample=1) as again:
        live({"x": X})
    assert again.statistics.compared == 1


def test_two_networks_can_shadow_each_other(networks: Any) -> None:
    live, other = networks
    with live.shadow(other, sample=1) as one, other.shadow(live, sample=1) as two:
        live({"x": X})
        other({"x": X})
    assert (one.statistics.inferences, two.statistics.inferences) == (1, 1)


def test_networks_that_do_not_fit_are_refused(networks: Any, tmp_path: Path) -> None:
    live, _ = networks
    from engine.testing.behaviour.basic import BASIC

    onnx.save(BASIC.model(), tmp_path / "other.onnx")
    unlike = Core().compile_model(tmp_path / "other.onnx", "TEMPLATE")
    with pytest.raises(InputError, match=r"has the inputs a, b; expected the same as .*: x"):
        live.shadow(unlike)
    with pytest.raises(InputError, match="sample must be from 0 to 1"):
        live.shadow(live, sample=2)
    assert isinstance(live.shadow(live, sample=0), Shadow), "the failed ones have left nothing behind"
