"""The choices for a network, and its memory: in the log, as metrics, and as numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.errors import PluginContractError
from engine.ir import Constant, Parameter, Result, f32
from engine.plugin_api import ExecutableNetwork

DEVICES = ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"]
WEIGHT_BYTES = 256 * 256 * 4


def product() -> Model:
    x = Parameter(f32, ["N", 256], "x")
    weights = Constant(np.full((256, 256), 0.5, np.float32), friendly_name="w")
    return Model([Result(ops.MatMul(x, weights), "y")], [x], name="product")


X = np.ones((3, 256), np.float32)


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def test_the_log_says_what_was_chosen(core: Core, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.core")
    config = {"CACHE_DIR": str(tmp_path / "cache"), "NUM_STREAMS": 2}
    network = core.compile_model(product(), "CPU", config)
    core.compile_model(product(), "CPU", config)
    network.export_model(tmp_path / "a.blob")
    imported = core.import_model(tmp_path / "a.blob")
    lines = [record.getMessage() for record in caplog.records if record.name == "engine.core"]
    assert [line.partition(" in ")[0] for line in lines] == [
        "compiled `product`", "loaded from the cache `product`", "imported `product`"
    ]  # fmt: skip
    for words in (
        "devices CPU",
        "streams 2",
        "threads of each ",
        "instruction set ",
        "precision f32",
        "weights 0.3 MB",
    ):
        assert words in lines[0]
    for each in (network, imported):
        assert each.get_property("COMPILE_SECONDS") > 0
        assert each.get_property("EXECUTION_PRECISION") == "f32"
        assert each.get_property("EXECUTION_THREADS") >= 1
        assert each.get_property("INSTRUCTION_SET") in each.requirements()["isa"]


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_counted_and_memory_is_released(device: str, core: Core) -> None:
    network = core.compile_model(product(), device)
    expected = network(X)["y"].copy()
    assert network.submit(X).result(60)["y"].tolist() == expected.tolist()
    statistics = network.memory_statistics()
    assert sum(statistics.values()) >= WEIGHT_BYTES, statistics
    kept = network.create_infer_request()
    kept.infer(X)
    for _ in range(2):
        network.release_memory()
        np.testing.assert_array_equal(network(X)["y"], expected)
        np.testing.assert_array_equal(network.submit(X).result(60)["y"], expected)
        np.testing.assert_array_equal(kept.results["y"], expected)
        np.testing.assert_array_equal(kept.infer(X)["y"], expected)


def test_plans_are_made_again_after_a_release(core: Core) -> None:
    network = core.compile_model(product(), "CPU")
    network(X)
    before = network.get_metric("LOWERED_PLANS")
    network(X)
    assert network.get_metric("LOWERED_PLANS") == before
    network.release_memory()
    network(X)
    assert network.get_metric("LOWERED_PLANS") > before


def test_a_device_that_tells_nonsense_is_named(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    network: ExecutableNetwork[Any] = core.compile_model(product(), "TEMPLATE")
    monkeypatch.setattr(type(network), "memory", lambda self: {"weights": -1})
    with pytest.raises(PluginContractError, match="memory"):
        network.memory_statistics()
