"""SCALE, a device that multiplies its input by the constants of the model: y = x * a * b ... + SHIFT.

Child processes register it as "conftest:ScalePlugin", with this folder on their path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.ir import Constant
from engine.plugin_api import (
    CONFIG,
    BlobManifest,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Model,
    Plugin,
    Property,
    QueryResult,
    Support,
    SyncInferRequest,
)

SHIFT = Property("SHIFT", int, 0, CONFIG, "What is added to every result.")


class ScaleRequest(SyncInferRequest):
    def __init__(self, network: ScaleNetwork) -> None:
        super().__init__(network)
        self.factor, self.shift = network.graph, network.config[SHIFT]

    def start_pipeline(self) -> None:
        self.store_output(0, (self.inputs[0] * self.factor + self.shift).astype(np.float32))


class ScaleNetwork(ExecutableNetwork):
    graph: Any

    def __init__(self, plugin: Plugin, config: Config, source: Model | BlobManifest, factor: Any) -> None:
        super().__init__(plugin, config, source)
        self.graph = factor

    def create_infer_request_impl(self) -> SyncInferRequest:
        return ScaleRequest(self)

    def export_sections(self, writer: BlobWriter) -> None:
        writer.add_section("factor", self.graph)

    def requirements(self) -> Mapping[str, Sequence[str]]:
        return {"unit": ["scaler"]}


class ScalePlugin(Plugin):
    name = "SCALE"
    version = "1.2.0"
    api_version = 2
    properties = (SHIFT,)

    ids: ClassVar[Sequence[str]] = ("0",)
    features: ClassVar[Mapping[str, Collection[str]]] = {"unit": ("scaler", "adder")}
    compiled: ClassVar[list[Config]] = []
    """The configurations of all compilations of the class."""
    imported: ClassVar[list[memoryview]] = []
    """The sections of all imports of the class."""

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:  # one of a test, and not one that a registry renamed
            cls.compiled, cls.imported = [], []

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        self.compiled.append(config)
        constants = [n.data for n in model.ordered_nodes() if isinstance(n, Constant) and n.data.dtype == np.float32]
        return ScaleNetwork(self, config, model, np.prod(constants, axis=0))

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        section = blob.section("factor")
        self.imported.append(section)
        return ScaleNetwork(self, config, blob.manifest, np.frombuffer(section, np.float32))

    def query_model(self, model: Model, config: Config) -> QueryResult:
        return QueryResult({n.friendly_name: Support.native() for n in model.ordered_nodes() if n.num_inputs})

    def device_ids(self) -> Sequence[str]:
        return self.ids

    def host_features(self, device_id: str) -> Mapping[str, Collection[str]]:
        return self.features


def scaling(*factors: Any, name: str = "scaling", size: int = 2) -> onnx.ModelProto:
    """A model of `size` numbers: y = x * factors[0] * factors[1] ..."""
    names = ["x", *(f"t{i}" for i in range(len(factors) - 1)), "y"]
    graph = helper.make_graph(
        [helper.make_node("Mul", [names[i], f"f{i}"], [names[i + 1]], f"mul{i}") for i in range(len(factors))],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [numpy_helper.from_array(np.full(size, factor, np.float32), f"f{i}") for i, factor in enumerate(factors)],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def scale() -> type[ScalePlugin]:
    """A class of this test, whose attributes it may change."""
    return type("ScalePlugin", (ScalePlugin,), {})


@pytest.fixture
def core(scale: type[ScalePlugin]) -> Core:
    """A core with SCALE."""
    core = Core()
    core.register_plugin("SCALE", scale)
    return core


@pytest.fixture
def model() -> onnx.ModelProto:
    """y = 3 x."""
    return scaling(3)


@pytest.fixture
def make_model() -> Callable[..., onnx.ModelProto]:
    """`make_model(2, 3)`: y = 2 * 3 * x."""
    return scaling


@pytest.fixture
def x() -> np.ndarray[Any, np.dtype[np.float32]]:
    """An input."""
    return np.array([1, -2], np.float32)


@pytest.fixture
def here() -> Path:
    """The folder from which child processes import SCALE."""
    return Path(__file__).parent
