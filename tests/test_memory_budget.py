"""MEMORY_BUDGET: networks take no more than it, or an error says what would fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core
from engine.errors import EngineWarning, MemoryBudgetError, OutOfMemoryError, PluginContractError, PropertyError
from engine.properties import CONFIG, MEMORY_BUDGET, NO_LIMIT, Property
from engine.testing.networks import seeded_network
from tests.test_memory_forecast import UNCACHED, linear


@pytest.fixture
def core() -> Core:
    return Core()


def convolutions() -> onnx.ModelProto:
    """Three 3x3 convolutions, which Winograd's algorithm computes from weights four times as large."""
    random = np.random.default_rng(2)
    nodes, weights, value = [], [], "x"
    for number in range(3):
        kernel = random.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
        weights.append(onnx.numpy_helper.from_array(kernel, f"w{number}"))
        nodes.append(helper.make_node("Conv", [value, f"w{number}"], [f"y{number}"], f"conv{number}", pads=[1] * 4))
        value = f"y{number}"
    ports = [helper.make_tensor_value_info(name, 1, [1, 64, 28, 28]) for name in ("x", value)]
    return helper.make_model(helper.make_graph(nodes, "convolutions", ports[:1], ports[1:], weights))


@pytest.mark.parametrize("value", [0, -1, "0", "-5", "0 MiB", "12 pounds", "", 1.5, True])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_what_is_no_budget_is_refused_by_name(value: Any, device: str, core: Core) -> None:
    with pytest.raises(PropertyError, match="MEMORY_BUDGET takes int of bytes, at least 1"):
        core.compile_model(linear(4), device, {"MEMORY_BUDGET": value})


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("2kB", 2000), ("3 gib", 3 << 30), (7, 7)],
)
def test_units(text: Any, nbytes: int) -> None:
    assert MEMORY_BUDGET.validate(text) == nbytes
    assert MEMORY_BUDGET.parse(str(text)) == nbytes


def test_only_whole_numbers_are_bytes() -> None:
    with pytest.raises(PluginContractError, match="only an int property can be a number of bytes"):
        Property("SIZE", float, 1.0, CONFIG, "A size.", is_bytes=True)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE", "OPENCL"])
def test_the_smallest_budget_of_the_error_fits(device: str, core: Core) -> None:
    if device not in core.available_devices:
        pytest.skip(f"{device} is not available")
    model = linear(16)
    with pytest.raises(MemoryBudgetError, match=rf"{device}: .*MEMORY_BUDGET \(1000 bytes\)") as caught:
        core.compile_model(model, device, {**UNCACHED, "MEMORY_BUDGET": 1000})
    assert isinstance(caught.value, OutOfMemoryError)
    message, needed = str(caught.value), caught.value.needed
    if device != "OPENCL":  # which refuses before its weights are uploaded
        assert f"the smallest budget for it here is MEMORY_BUDGET={needed}" in message
        assert "most is held by `" in message
        network = core.compile_model(model, device, {**UNCACHED, "MEMORY_BUDGET": needed})
        assert network.memory_forecast().peak <= needed
        with pytest.raises(MemoryBudgetError):
            core.compile_model(model, device, {**UNCACHED, "MEMORY_BUDGET": needed - 1})


def test_cpu_gives_up_copies_of_weights_to_fit(core: Core, tmp_path: Path) -> None:
    model = convolutions()
    free: Any = core.compile_model(model, "CPU", UNCACHED)
    whole = free.memory_forecast()
    budget = whole.peak - whole.weights // 3
    network: Any = core.compile_model(model, "CPU", {**UNCACHED, "MEMORY_BUDGET": budget})
    assert network.memory_forecast().peak <= budget
    assert network.memory_forecast().weights < whole.weights / 2
    x = np.random.default_rng(3).standard_normal((1, 64, 28, 28)).astype(np.float32)
    np.testing.assert_allclose(network({"x": x})["y2"], free({"x": x})["y2"], rtol=1e-3, atol=1e-4)
    network.export_model(path := tmp_path / "network.blob")
    again = core.import_model(path)
    np.testing.assert_array_equal(again({"x": x})["y2"], network({"x": x})["y2"])
    with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
        core.import_model(path, config={"MEMORY_BUDGET": 1000})


def test_auto_takes_another_device_where_a_budget_is_too_small(core: Core) -> None:
    config = {**UNCACHED, "DEVICE_PROPERTIES": {"CPU": {"MEMORY_BUDGET": 1000}}}
    with pytest.warns(EngineWarning, match="CPU is left for other devices: MemoryBudgetError"):
        network = core.compile_model(linear(4), "AUTO:CPU,TEMPLATE", config)
    assert network.get_metric("EXECUTION_DEVICES") == ("TEMPLATE",)
    with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
        core.compile_model(linear(4), "AUTO:CPU", config)


def test_budget_is_not_part_of_a_blob(core: Core, tmp_path: Path) -> None:
    network = core.compile_model(linear(4), "CPU", {**UNCACHED, "MEMORY_BUDGET": "1MiB"})
    network.export_model(path := tmp_path / "network.blob")
    assert core.import_model(path).config[MEMORY_BUDGET] == NO_LIMIT


def test_cpu_takes_fewer_streams_than_a_hint_asks_for_but_not_than_the_user_does(core: Core) -> None:
    model, hint = linear(256), {**UNCACHED, "PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 2}
    many = core.compile_model(model, "CPU", {**hint, "NUM_STREAMS": 2}).memory_forecast()
    budget = many.peak - 1
    if core.compile_model(model, "CPU", hint).config["NUM_STREAMS"] > 1:  # on a machine with several cores
        assert core.compile_model(model, "CPU", {**hint, "MEMORY_BUDGET": budget}).config["NUM_STREAMS"] == 1
    with pytest.raises(MemoryBudgetError, match="for each of 2 streams"):
        core.compile_model(model, "CPU", {**hint, "MEMORY_BUDGET": budget, "NUM_STREAMS": 2})


def test_weights_alone_are_compared_for_open_lengths(core: Core) -> None:
    for device in ("CPU", "OPENCL", "TEMPLATE"):
        if device in core.available_devices:
            with pytest.raises(MemoryBudgetError, match="MEMORY_BUDGET"):
                core.compile_model(linear(), device, {**UNCACHED, "MEMORY_BUDGET": 2000})({"x": np.ones((1, 96), "f4")})


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "TEMPLATE"])
def test_inferences_that_would_take_more_are_refused(device: str, core: Core) -> None:
    if device not in core.available_devices:
        pytest.skip(f"{device} is not available")
    network = core.compile_model(linear(), device, {**UNCACHED, "MEMORY_BUDGET": "1MB"})
    few, many = np.ones((8, 96), np.float32), np.ones((5000, 96), np.float32)
    expected = network({"x": few})["y2"]
    for _ in range(2):
        with pytest.raises(MemoryBudgetError, match=r"shapes \[5000, 96\] does not fit into MEMORY_BUDGET \(1000000"):
            network({"x": many})
        np.testing.assert_array_equal(network({"x": few})["y2"], expected)


def test_a_budget_that_plans_exceed_later_leaves_the_network_usable(core: Core) -> None:
    """Weights in a further form do not fit: the error comes before any of them is made, and what exists is right."""
    model = seeded_network("resnet50", small=True).model
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    network: Any = core.compile_model(model, "CPU", {**UNCACHED, "MEMORY_BUDGET": "1GB"})
    store = network.weights
    store.limit._left = 0  # as if the budget were used up
    shape = [dim.min if dim.is_static else 1 for dim in network.inputs[0].type.shape]
    x = {network.inputs[0].name: np.ones(shape, np.float32)}
    with pytest.raises(MemoryBudgetError, match="weights in another form"):
        network(x)
    store.limit._left = 1 << 30
    expected = core.compile_model(model, "CPU", UNCACHED)(x)
    np.testing.assert_array_equal(network(x)[0], expected[0])
