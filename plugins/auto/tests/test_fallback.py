"""Devices that fail: the next device replaces them, with a warning, and no inference is lost."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.errors import Cancelled, DeviceError, InputError, OutOfMemoryError, StateError
from engine.passes import MakeStateful, Manager

LIMIT = 60.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def negation() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="neg")],
        "g",
        [info("x", TensorProto.FLOAT, (2, 3))],
        [info("y", TensorProto.FLOAT, (2, 3))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def settled(rig: Any, first: str = "ACME", **config: object) -> Any:
    """A network on ACME or BOLT, which is final."""
    other = rig.bolt if first == "ACME" else rig.acme
    other.compile_gate.clear()
    network = rig.compile(negation(), MEASURE_SECONDS=0, **config)
    other.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert network.get_metric("EXECUTION_DEVICES") == (first,)
    return network


def test_a_device_that_cannot_compile_is_left(rig: Any) -> None:
    rig.acme.compile_error = DeviceError("the driver says no")
    rig.bolt.compile_gate.clear()
    timer = threading.Timer(0.05, rig.bolt.compile_gate.set)
    timer.start()
    with pytest.warns(RuntimeWarning, match="ACME is left for other devices: DeviceError: the driver says no"):
        network = rig.compile(negation())
    timer.join()
    np.testing.assert_array_equal(network(X)["y"], -X)
    assert network.wait_for_choice(LIMIT)
    candidates = network.get_metric("CANDIDATES")
    assert (candidates["ACME"]["state"], candidates["BOLT"]["state"]) == ("failed", "chosen")
    assert "the driver says no" in network.get_metric("CHOICE_REASON")


def test_a_device_that_is_left_later_is_in_the_summary(rig: Any) -> None:
    """In the background, after the network is ready: nobody may read the warning there."""
    rig.acme.compile_gate.clear()
    rig.acme.compile_error = DeviceError("the driver says no")
    network = rig.compile(negation(), MEASURE_SECONDS=0)
    assert network.get_metric("EXECUTION_SUMMARY")["fallbacks"] == ()
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    (left,) = network.get_metric("EXECUTION_SUMMARY")["fallbacks"]
    assert left == "ACME is left for other devices: DeviceError: the driver says no"


def test_a_device_that_is_left_is_told_once_on_stderr(
    rig: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a handler, a logger writes to stderr by itself, as Python's warnings do."""
    monkeypatch.setattr(logging.getLogger("engine.auto"), "propagate", False)
    network = settled(rig)
    rig.acme.infer_error = DeviceError("lost")
    with pytest.warns(RuntimeWarning, match="ACME failed") as found:
        network(X)
    assert len(found) == 1
    assert capsys.readouterr().err == ""
    (left,) = network.get_metric("EXECUTION_SUMMARY")["fallbacks"]
    assert left in str(found[0].message)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [DeviceError("lost"), OutOfMemoryError("full"), ValueError("a bug")])
def test_an_inference_that_fails_is_repeated_on_the_next_device(rig: Any, error: Exception, is_async: bool) -> None:
    network = settled(rig)
    rig.acme.infer_error = error
    request = network.create_infer_request()
    if is_async:
        request.start_async(X)
        request.wait(LIMIT)  # the warning is given on another thread; the log has it, too
        result = request.results
    else:
        with pytest.warns(RuntimeWarning, match="ACME failed and is no longer used; inferences continue on BOLT"):
            result = request.infer(X)
    np.testing.assert_array_equal(result["y"], -X)
    assert network.get_metric("EXECUTION_DEVICES") == ("BOLT",)
    assert "ACME failed" in network.get_metric("CHOICE_REASON")
    before = rig.acme.inferences
    request.infer(X)
    assert rig.acme.inferences == before


def test_output_tensors_are_written_by_the_next_device(rig: Any) -> None:
    network = settled(rig)
    rig.acme.infer_error = DeviceError("lost")
    request, y = network.create_infer_request(), np.zeros_like(X)
    request.set_output_tensor("y", y)
    with pytest.warns(RuntimeWarning, match="ACME failed"):
        assert request.infer(X)["y"] is y
    np.testing.assert_array_equal(y, -X)


def test_an_error_on_all_devices_is_that_of_the_inference(rig: Any) -> None:
    """No device is given up, since the inputs cause the error."""
    network = settled(rig)
    rig.acme.infer_error = rig.bolt.infer_error = DeviceError("index 7 is out of range")
    with pytest.raises(DeviceError, match="index 7") as caught:
        network(X)
    assert any("BOLT" in note for note in caught.value.__notes__)
    rig.acme.infer_error = rig.bolt.infer_error = None
    np.testing.assert_array_equal(network(X)["y"], -X)
    assert network.get_metric("EXECUTION_DEVICES") == ("ACME",)


def test_the_third_device_stands_in_if_two_fail(rig: Any, new_device: Any) -> None:
    rig.core.register_plugin("CASK", new_device("CASK")[0])
    network = rig.compile(negation(), "AUTO:ACME,BOLT,CASK", MEASURE_SECONDS=0)
    assert network.wait_for_choice(LIMIT)
    rig.acme.infer_error = rig.bolt.infer_error = DeviceError("lost")
    with pytest.warns(RuntimeWarning, match="ACME failed"):
        np.testing.assert_array_equal(network(X)["y"], -X)
    assert network.get_metric("EXECUTION_DEVICES") == ("CASK",)


def test_a_device_that_is_given_up_while_it_stands_in_is_used_again(rig: Any, new_device: Any) -> None:
    """The choice is made for ACME, and BOLT given up, while BOLT runs what failed on ACME."""
    kind, cask = new_device("CASK")
    rig.core.register_plugin("CASK", kind)
    rig.bolt.compile_gate.clear()
    cask.compile_gate.clear()
    network = rig.compile(negation(), "AUTO:ACME,BOLT,CASK", MEASURE_SECONDS=0)
    rig.acme.infer_error = DeviceError("lost")
    rig.bolt.infer_gate.clear()
    rig.bolt.compile_gate.set()
    request = network.create_infer_request()
    request.start_async(X)
    while not rig.bolt.inferences:
        time.sleep(0.01)
    cask.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert network.get_metric("EXECUTION_DEVICES") == ("ACME",)
    rig.bolt.infer_gate.set()
    request.wait(LIMIT)
    assert network.get_metric("EXECUTION_DEVICES") == ("BOLT",)
    np.testing.assert_array_equal(network(X)["y"], -X)
    np.testing.assert_array_equal(network.submit(X).result(LIMIT)["y"], -X)


def test_a_wrong_input_is_not_tried_elsewhere(rig: Any) -> None:
    network = settled(rig)
    rig.bolt.inferences = 0
    with pytest.raises(InputError):
        network(X[:1])
    assert rig.bolt.inferences == 0


def test_a_cancelled_inference_is_not_tried_elsewhere(rig: Any) -> None:
    network = settled(rig)
    before = rig.bolt.inferences
    rig.acme.infer_gate.clear()
    request = network.create_infer_request()
    request.start_async(X)
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait(LIMIT)
    assert rig.bolt.inferences == before
    rig.acme.infer_gate.set()
    np.testing.assert_array_equal(request.infer(X)["y"], -X)


def test_a_pinned_device_never_falls_back(rig: Any) -> None:
    rig.acme.infer_error = DeviceError("lost")
    network = rig.core.compile_model(negation(), "ACME")
    with pytest.raises(DeviceError, match="lost"):
        network(X)
    alone = rig.compile(negation(), "AUTO:ACME")
    with pytest.raises(DeviceError, match="lost"):
        alone(X)


def test_a_device_that_was_known_and_fails_is_replaced(rig: Any) -> None:
    """The choice of an earlier compilation: the other device is only compiled for when it is needed."""
    rig.bolt.seconds = 0.01
    assert rig.compile(negation()).wait_for_choice(LIMIT)
    compiled = rig.bolt.compiled
    network = rig.compile(negation())
    rig.acme.infer_error = DeviceError("lost")
    with pytest.warns(RuntimeWarning, match="ACME failed"):
        np.testing.assert_array_equal(network(X)["y"], -X)
    assert rig.bolt.compiled == compiled + 1


def test_many_requests_that_fail_at_once_all_get_results(rig: Any) -> None:
    network = settled(rig)
    rig.acme.infer_error = DeviceError("lost")
    results: list[Any] = []
    requests = [network.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async(X)
    for request in requests:
        request.wait(LIMIT)
        results.append(request.results["y"])
    assert all(np.array_equal(result, -X) for result in results)
    assert rig.bolt.compiled == 2  # once while it was considered, and once again after it was given up


# -- sequences ----------------------------------------------------------------------------------------------


def running_sum(rig: Any) -> Any:
    """total = total + x; y = total."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["total", "x"], ["next"], name="add"), helper.make_node("Identity", ["next"], ["y"])],
        "sum",
        [info("x", TensorProto.FLOAT, (2, 3)), info("total", TensorProto.FLOAT, (2, 3))],
        [info("y", TensorProto.FLOAT, (2, 3)), info("next", TensorProto.FLOAT, (2, 3))],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = rig.core.read_model(proto)
    manager = Manager()
    manager.register_pass(MakeStateful({"total": "next"}))
    manager.run_passes(model)
    return model


def on_bolt_first(rig: Any) -> Any:
    """A network of the running sum that is on BOLT, and will be on ACME once its gate is open."""
    rig.acme.compile_gate.clear()
    rig.bolt.seconds = 0.01
    network = rig.compile(running_sum(rig))
    assert network.get_metric("EXECUTION_DEVICES") == ("BOLT",)
    return network


def test_a_sequence_stays_on_the_device_where_it_began(rig: Any) -> None:
    network = on_bolt_first(rig)
    request = network.create_infer_request()
    np.testing.assert_array_equal(request.infer(X)["y"], X)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert network.get_metric("EXECUTION_DEVICES") == ("ACME",)
    acme = rig.acme.inferences
    np.testing.assert_array_equal(request.infer(X)["y"], 2 * X)
    copy = request.fork()  # a copy goes on where the original is
    np.testing.assert_array_equal(copy.infer(X)["y"], 3 * X)
    assert rig.acme.inferences == acme
    request.reset_state()
    copy.reset_state()
    np.testing.assert_array_equal(request.infer(X)["y"], X)
    assert rig.acme.inferences == acme + 1


def test_calls_of_a_stateful_network_begin_on_the_chosen_device(rig: Any) -> None:
    network = on_bolt_first(rig)
    np.testing.assert_array_equal(network(X)["y"], X)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    acme = rig.acme.inferences
    np.testing.assert_array_equal(network(X)["y"], X)
    assert rig.acme.inferences == acme + 1


def test_a_failure_in_mid_sequence_is_an_error_and_keeps_the_state(rig: Any) -> None:
    network = on_bolt_first(rig)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    request = network.create_infer_request()
    request.infer(X)
    rig.acme.infer_error = DeviceError("lost")
    with pytest.raises(DeviceError, match="lost"):
        request.infer(X)
    np.testing.assert_array_equal(request.query_state()["total"].get(), X)
    request.reset_state()
    with pytest.warns(RuntimeWarning, match="ACME failed"):  # the first inference of a sequence may begin elsewhere
        np.testing.assert_array_equal(request.infer(X)["y"], X)
    np.testing.assert_array_equal(request.infer(X)["y"], 2 * X)


def test_a_sequence_of_a_device_that_was_left_cannot_go_on(rig: Any) -> None:
    network = on_bolt_first(rig)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    one, other = network.create_infer_request(), network.create_infer_request()
    one.infer(X)
    rig.acme.infer_error = DeviceError("lost")
    with pytest.warns(RuntimeWarning, match="ACME failed"):
        other.infer(X)
    with pytest.raises(StateError, match="where this sequence began"):
        one.infer(X)
    one.reset_state()
    np.testing.assert_array_equal(one.infer(X)["y"], X)
