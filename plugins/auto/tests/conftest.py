"""Devices for tests: TEMPLATE under other names, which waits, refuses, or fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine import Core
from engine.errors import UnsupportedError
from engine.plugin_api import Config, ExecutableNetwork, Model, QueryResult, RefusalCause, Support, SyncInferRequest

LIMIT = 60.0


@pytest.fixture(autouse=True)
def other_load(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Other processes, such as other tests, use nothing of the machine, or the given share."""

    def set_share(share: float) -> None:
        monkeypatch.setattr("engine_auto.selection.OtherLoad.share", lambda self: share)

    set_share(0.0)
    return set_share


class Behaviour:
    """How a device behaves; tests change it at any time.

    `compile_gate` and `infer_gate` are waited for; `compile_error` and `infer_error` are raised; an inference then
    takes at least `seconds` and adds `offset` to floats, so that results tell the device.
    """

    def __init__(self) -> None:
        self.compile_gate = threading.Event()
        self.compile_gate.set()
        self.infer_gate = threading.Event()
        self.infer_gate.set()
        self.compile_error: Exception | None = None
        self.infer_error: Exception | None = None
        self.refuses = False
        self.seconds = 0.0
        self.offset = 0.0
        self.compiled = 0
        self.inferences = 0


class _Request(TemplateInferRequest):
    behaviour: Behaviour

    def wait_pipeline(self) -> None:
        behaviour = self.behaviour
        behaviour.inferences += 1
        while not behaviour.infer_gate.wait(0.01):
            self.check_cancelled()
        if behaviour.seconds:
            threading.Event().wait(behaviour.seconds)
        if behaviour.infer_error is not None:
            raise behaviour.infer_error
        super().wait_pipeline()

    def infer_postprocess(self) -> None:
        super().infer_postprocess()
        if self.behaviour.offset:
            first = self.get_output_tensor(0)
            self.store_output(0, first + first.dtype.type(self.behaviour.offset))


def device(name: str, *, is_reference: bool = False) -> tuple[type[TemplatePlugin], Behaviour]:
    """A plugin class for the device `name`, and how it behaves."""
    behaviour = Behaviour()

    class Network(TemplateNetwork):
        def create_infer_request_impl(self) -> SyncInferRequest:
            request = _Request(self, self.program)
            request.behaviour = behaviour
            return request

    class Device(TemplatePlugin):
        def query_model(self, model: Model, config: Config) -> QueryResult:
            answer = super().query_model(model, config)
            if not behaviour.refuses:
                return answer
            refused = Support.refused(RefusalCause.OP, f"{name} has no kernel")
            return QueryResult(dict.fromkeys(answer.nodes, refused))

        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            behaviour.compiled += 1
            assert behaviour.compile_gate.wait(LIMIT)
            if behaviour.refuses:
                raise UnsupportedError(f"{name} has no kernel")
            if behaviour.compile_error is not None:
                raise behaviour.compile_error
            return Network.compiled(self, config, model)

        def metric(self, metric: str, device_id: str) -> object:
            return is_reference if metric == "IS_REFERENCE" else super().metric(metric, device_id)

    Device.name = name
    return Device, behaviour


class Rig:
    """A core with the devices ACME and BOLT, and how they behave."""

    def __init__(self) -> None:
        self.core = Core()
        acme, self.acme = device("ACME")
        bolt, self.bolt = device("BOLT")
        self.core.register_plugin("ACME", acme)
        self.core.register_plugin("BOLT", bolt)

    def compile(self, model: Any, device: str = "AUTO:ACME,BOLT", **config: object) -> Any:
        """A network of AUTO, which may measure for as long as it needs, however busy the machine is."""
        return self.core.compile_model(model, device, {"MEASURE_SECONDS": LIMIT, **config})


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def new_device() -> Callable[..., tuple[type[TemplatePlugin], Behaviour]]:
    return device


@pytest.fixture(autouse=True)
def choices_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Choices of other tests, and of the user, are not used."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
