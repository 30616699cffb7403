"""Values between subgraphs of one device stay in its memory.

If this fails, a model that leaves a GPU for one operation pays for copies of every value that does not pass through
that operation.
"""

from __future__ import annotations

import io

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Model, Parameter, f32
from engine.plugin_api import ExecutableNetwork
from engine.runtime import AsyncInferRequest

SHAPE = (8, 16)
NBYTES = 8 * 16 * 4


def round_trip(outer: str, inner: str, rows: int | str = 8, *, more: bool = False) -> Model:
    """relu(x) and twice it on `outer`, its sigmoid on `inner`, and the product with relu(x) on `outer` again.

    With `more`, relu(x) is an output, too, and is read on `inner`.
    """
    x = Parameter(f32, [rows, 16], "x")
    positive = ops.Relu(x)
    double = ops.Add(positive, positive)
    share = ops.Sigmoid(ops.Add(double, positive)) if more else ops.Sigmoid(double)
    gated = ops.Mul(share, positive)
    for value, device in ((positive, outer), (double, outer), (share, inner), (gated, outer)):
        value.rt_info["affinity"] = device
    if more:
        share.input_value(0).node.rt_info["affinity"] = inner
    return Model([gated, positive] if more else [gated], [x])


def expected(x: np.ndarray, *, more: bool = False) -> np.ndarray:
    positive = np.maximum(x, 0)
    factor = 3 if more else 2
    return np.asarray(positive / (1 + np.exp(-factor * positive)), np.float32)


def given(seed: int = 0, rows: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 16), np.float32)


def transfers(network: ExecutableNetwork, device: str) -> tuple[int, int]:
    counted = network.get_property("HOST_TRANSFERS")[device]
    return counted["to_device"], counted["to_host"]


@pytest.mark.parametrize(
    ("outer", "inner"), [("TEMPLATE", "CPU"), pytest.param("OPENCL", "CPU", marks=pytest.mark.opencl)]
)
def test_a_value_passes_a_part_of_another_device_without_being_copied(outer: str, inner: str) -> None:
    """Of the four values at the borders, only the one that `outer` reads of itself is not copied."""
    network = Core().compile_model(round_trip(outer, inner), f"HETERO:{outer},{inner}")
    assert network.get_property("SUBGRAPH_DEVICES") == (outer, inner, outer)
    request = network.create_infer_request()
    for count in range(1, 4):
        x = given(count)
        np.testing.assert_allclose(network([x])[0], expected(x), rtol=1e-5)
        request.start_async([x])
        request.wait(60)
        np.testing.assert_allclose(request.results[0], expected(x), rtol=1e-5)
        # x and the sigmoid to the device; twice relu(x) and the result back.
        assert transfers(network, outer) == (2 * count * 2 * NBYTES, 2 * count * 2 * NBYTES)


@pytest.mark.opencl
@pytest.mark.parametrize("config", [{"DEVICE_ID": "0"}, {"DEVICE_NAME": ""}])
def test_the_context_is_on_the_device_that_its_configuration_selects(config: dict[str, str]) -> None:
    core = Core()
    if "DEVICE_NAME" in config:
        config = {"DEVICE_NAME": core.get_property("OPENCL", "FULL_DEVICE_NAME")}
    network = core.compile_model(
        round_trip("OPENCL", "CPU"), "HETERO:OPENCL,CPU", {"DEVICE_PROPERTIES": {"OPENCL": config}}
    )
    np.testing.assert_allclose(network([given()])[0], expected(given()), rtol=1e-5)
    assert transfers(network, "OPENCL") == (2 * NBYTES, 2 * NBYTES)


def test_a_value_that_others_read_too_is_copied_once() -> None:
    network = Core().compile_model(round_trip("TEMPLATE", "CPU", more=True), "HETERO:TEMPLATE,CPU")
    for count in range(1, 3):
        x = given(count)
        result = network([x])
        np.testing.assert_allclose(result[0], expected(x, more=True), rtol=1e-5)
        np.testing.assert_array_equal(result[1], np.maximum(x, 0))
        # relu(x), for the CPU and as an output; twice relu(x); the result.
        assert transfers(network, "TEMPLATE") == (count * 2 * NBYTES, count * 3 * NBYTES)


def test_results_do_not_change_with_later_inferences() -> None:
    network = Core().compile_model(round_trip("TEMPLATE", "CPU", more=True), "HETERO:TEMPLATE,CPU")
    request = network.create_infer_request()
    first = request.infer([given(1)])
    kept = [value.copy() for value in first.values()]
    request.infer([given(2)])
    for value, before in zip(first.values(), kept, strict=True):
        np.testing.assert_array_equal(value, before)


def test_requests_have_memory_of_their_own() -> None:
    network = Core().compile_model(round_trip("TEMPLATE", "CPU"), "HETERO:TEMPLATE,CPU")
    requests: list[AsyncInferRequest] = [network.create_infer_request() for _ in range(4)]
    for _ in range(3):
        for seed, request in enumerate(requests):
            request.start_async([given(seed)])
        for seed, request in enumerate(requests):
            request.wait(60)
            np.testing.assert_allclose(request.results[0], expected(given(seed)), rtol=1e-5)


def test_a_value_of_unknown_length_is_passed_as_an_array() -> None:
    network = Core().compile_model(round_trip("TEMPLATE", "CPU", "rows"), "HETERO:TEMPLATE,CPU")
    for rows in (8, 3):
        np.testing.assert_allclose(network([given(1, rows)])[0], expected(given(1, rows)), rtol=1e-5)


def test_an_imported_network_keeps_values_on_the_device_too() -> None:
    core, stream = Core(), io.BytesIO()
    core.compile_model(round_trip("TEMPLATE", "CPU"), "HETERO:TEMPLATE,CPU").export_model(stream)
    network = core.import_model(stream.getvalue(), "HETERO:TEMPLATE,CPU")
    np.testing.assert_allclose(network([given()])[0], expected(given()), rtol=1e-5)
    assert transfers(network, "TEMPLATE") == (2 * NBYTES, 2 * NBYTES)


def test_devices_without_contexts_are_as_before() -> None:
    network = Core().compile_model(round_trip("CPU", "TEMPLATE"), "HETERO:CPU,TEMPLATE")
    np.testing.assert_allclose(network([given()])[0], expected(given()), rtol=1e-5)
    assert network.get_property("HOST_TRANSFERS") == {}


def test_a_failed_inference_leaves_a_request_that_can_be_used() -> None:
    network = Core().compile_model(round_trip("TEMPLATE", "CPU"), "HETERO:TEMPLATE,CPU")
    request = network.create_infer_request()
    request.start_async([given()])
    request.cancel()
    with pytest.raises(Exception, match="cancelled"):
        request.wait(60)
    request.clear_tensors()
    np.testing.assert_allclose(request.infer([given(1)])[0], expected(given(1)), rtol=1e-5)


def test_hetero_itself_names_the_devices_with_contexts() -> None:
    with pytest.raises(UnsupportedError, match=r"HETERO has no remote contexts.*TEMPLATE"):
        Core().create_context("HETERO:TEMPLATE,CPU")
