"""Stages that call a runtime which does not check for cancellation itself.

If this fails, a cancelled inference computes to its end, or one that is not cancelled is stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine import AsyncInferRequest, Core, ops
from engine.errors import Cancelled, DeadlineExceeded, DeviceError
from engine.ir import Model, Parameter, f32
from engine.plugin_api import Config, ExecutableNetwork, SyncInferRequest

LONG = 60.0


class Runtime:
    """Computes until it is stopped; it ignores the first `deaf` stops, as one that has not begun."""

    def __init__(self) -> None:
        self.is_endless = True
        self.deaf = 0
        self.stops = 0
        self.calls = 0
        self.begun = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        self.calls += 1
        self.begun.set()
        if self.is_endless:
            assert self._stopped.wait(LONG), "nothing has stopped the runtime"
            self._stopped.clear()
            raise RuntimeError("terminated by a flag")

    def stop(self) -> None:
        self.stops += 1
        if self.stops > self.deaf:
            self._stopped.set()


RUNTIME = Runtime()


class Request(TemplateInferRequest):
    def start_pipeline(self) -> None:
        with self.stopping(RUNTIME.stop):
            RUNTIME.run()
        super().start_pipeline()


class Network(TemplateNetwork):
    def create_infer_request_impl(self) -> SyncInferRequest:
        return Request(self, self.program)


class ForeignPlugin(TemplatePlugin):
    name = "FOREIGN"

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return Network.compiled(self, config, model)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(f"{__name__}.RUNTIME", made)
    return made


def make_request(device: str = "FOREIGN") -> AsyncInferRequest:
    core = Core()
    core.register_plugin("FOREIGN", ForeignPlugin)
    x = Parameter(f32, ["N", 2], "x")
    network = core.compile_model(Model([ops.Relu(x, friendly_name="y")], [x]), device)
    return network.create_infer_request()


INPUTS = {"x": np.array([[-1, 2]], np.float32)}


@pytest.mark.parametrize("device", ["FOREIGN", "AUTO:FOREIGN", "HETERO:FOREIGN"])
def test_a_cancellation_stops_the_runtime(device: str, runtime: Runtime) -> None:
    request = make_request(device)
    request.start_async(INPUTS)
    assert runtime.begun.wait(LONG)
    request.cancel()
    with pytest.raises(Cancelled) as caught:
        request.wait(LONG)
    if device == "FOREIGN":
        assert str(caught.value.__cause__) == "terminated by a flag"
    runtime.is_endless = False
    assert request.infer(INPUTS)[0].tolist() == [[0, 2]]


def test_a_deadline_stops_the_runtime(runtime: Runtime) -> None:
    request = make_request()
    for deadline in (0.02, 0.2, 2.0, 20.0):  # on a busy machine, it may pass before the call
        request.start_async(INPUTS, deadline=deadline)
        with pytest.raises(DeadlineExceeded):
            request.wait(LONG)
        if runtime.calls:
            break
    assert runtime.stops >= 1


def test_stops_are_repeated_until_the_runtime_ends(runtime: Runtime) -> None:
    runtime.deaf = 3
    request = make_request()
    request.start_async(INPUTS)
    assert runtime.begun.wait(LONG)
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait(LONG)
    stops = runtime.stops
    assert stops == 4
    runtime.is_endless = False
    request.infer(INPUTS)
    assert runtime.stops == stops, "an inference that nobody has cancelled was stopped"


def test_a_cancelled_inference_calls_no_runtime(runtime: Runtime) -> None:
    core = Core()
    core.register_plugin("FOREIGN", ForeignPlugin)
    x = Parameter(f32, ["N", 2], "x")
    request = core.compile_model(Model([ops.Relu(x)], [x]), "FOREIGN").create_infer_request_impl()
    request.begin(INPUTS)
    request.request_cancel(Cancelled("too late"))
    with pytest.raises(Cancelled, match="too late"):
        request.start_pipeline()
    assert (runtime.calls, runtime.stops) == (0, 0)


def test_a_call_that_returns_although_it_was_stopped_is_cancelled(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "run", lambda: (runtime.begun.set(), runtime._stopped.wait(LONG)))
    request = make_request()
    request.start_async(INPUTS)
    assert runtime.begun.wait(LONG)
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait(LONG)


def test_an_error_of_the_runtime_is_a_device_error(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(runtime, "run", fail)
    with pytest.raises(DeviceError, match="out of registers"):
        make_request().infer(INPUTS)


def test_a_stop_that_fails_is_logged(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        runtime._stopped.set()
        raise OSError("no such handle")

    monkeypatch.setattr(runtime, "stop", fail)
    request = make_request()
    request.start_async(INPUTS)
    assert runtime.begun.wait(LONG)
    with caplog.at_level(logging.ERROR, "engine.runtime"):
        request.cancel()
        with pytest.raises(Cancelled):
            request.wait(LONG)
    assert "stopping the call of a runtime failed" in caplog.text
    assert "no such handle" in caplog.text


def test_a_thread_may_cancel_at_any_moment(runtime: Runtime) -> None:
    """Before the call, while the runtime begins, in it, and when it has returned."""
    request = make_request()
    for attempt in range(50):
        runtime.is_endless = bool(attempt % 2)
        request.start_async(INPUTS)
        _spin(attempt * 20)
        request.cancel()
        try:
            request.wait(LONG)
        except Cancelled:
            continue
        assert not runtime.is_endless


def _spin(count: int, work: Callable[[int], object] = abs) -> None:
    for number in range(count):
        work(number)
