"""A tiny device, y = 2x, whose stages tests can hook into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.core.plugin_calls import compile_network
from engine.ir import Model, Parameter, Result, f32
from engine.plugin_api import (
    BlobManifest,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Pipeline,
    Plugin,
    QueryResult,
    Support,
    SyncInferRequest,
    ThreadExecutor,
)

Hook = Callable[["TinyRequest"], object]
STAGES = ("infer_preprocess", "start_pipeline", "wait_pipeline", "infer_postprocess")


class TinyRequest(SyncInferRequest):
    """Doubles its input; each stage first calls the hook of its name, if there is one."""

    def __init__(self, network: TinyNetwork) -> None:
        super().__init__(network)
        self._hooks = network.hooks
        self.aborts = 0

    def _hook(self, stage: str) -> None:
        if stage in self._hooks:
            self._hooks[stage](self)

    def infer_preprocess(self) -> None:
        self._hook("infer_preprocess")

    def start_pipeline(self) -> None:
        self._hook("start_pipeline")

    def wait_pipeline(self) -> None:
        self._hook("wait_pipeline")

    def infer_postprocess(self) -> None:
        self._hook("infer_postprocess")
        for index, value in enumerate(self.inputs):
            np.multiply(value, 2, out=self.output_buffer(index, value.shape))

    def abort_pipeline(self) -> None:
        self.aborts += 1
        self._hook("abort_pipeline")


class TinyNetwork(ExecutableNetwork):
    def __init__(
        self,
        plugin: Plugin,
        config: Config,
        source: Model | BlobManifest,
        *,
        staged: bool = False,
        hooks: dict[str, Hook] | None = None,
    ) -> None:
        super().__init__(plugin, config, source)
        self.hooks = hooks or {}
        self.staged = staged
        self.host = ThreadExecutor("host")
        self.device = ThreadExecutor("device")

    def create_infer_request_impl(self) -> SyncInferRequest:
        return TinyRequest(self)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        if not self.staged:
            return super().pipeline(request)
        return [
            (self.host, request.infer_preprocess),
            (self.device, request.start_pipeline),
            (self.device, request.wait_pipeline),
            (self.host, request.infer_postprocess),
        ]

    def export_sections(self, writer: BlobWriter) -> None:
        writer.add_section("factor", b"2")


class TinyPlugin(Plugin):
    name = "TINY"
    version = "1.2.3"
    api_version = 2

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        return TinyNetwork(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        assert bytes(blob.section("factor")) == b"2"
        return TinyNetwork(self, config, blob.manifest)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        return QueryResult({node.friendly_name: Support.native() for node in model.ordered_nodes()})


def tiny_model(*shapes: Any) -> Model:
    """A model of f32 inputs x, x1, .. and outputs y, y1, ..; [1, "N"] by default."""
    parameters = [Parameter(f32, shape, f"x{i or ''}") for i, shape in enumerate(shapes or ([1, "N"],))]
    return Model([Result(p, f"y{i or ''}") for i, p in enumerate(parameters)], parameters, name="tiny")


@pytest.fixture
def plugin() -> TinyPlugin:
    return TinyPlugin(core=None)  # type: ignore[arg-type]


@pytest.fixture
def make_network(plugin: TinyPlugin) -> Callable[..., TinyNetwork]:
    """`make_network(config, staged=..., model=..., start_pipeline=hook, ...)`."""

    def make(
        config: dict[str, object] | None = None,
        *,
        staged: bool = False,
        model: Model | None = None,
        **hooks: Hook,
    ) -> TinyNetwork:
        network = compile_network(plugin, model or tiny_model(), config)
        assert isinstance(network, TinyNetwork)
        network.staged, network.hooks = staged, hooks
        return network

    return make


@pytest.fixture
def x() -> np.ndarray[Any, Any]:
    return np.arange(4, dtype=np.float32).reshape(1, 4)
