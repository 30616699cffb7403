"""The choice as users meet it: the first inference, the switch, what is stored, and how the reason is reported."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_auto.candidate import executor_of
from engine_auto.other_load import OtherLoad
from onnx import TensorProto, helper

from engine import Core
from engine.errors import DeviceError, DeviceNotFoundError, ModelError, PropertyError, UnsupportedError
from engine.runtime.deadlines import Deadline

LIMIT = 60.0
MEASURED_SHARE = OtherLoad.share
"""The method itself, which `other_load` replaces in tests."""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def negation(shape: Any = (2, 3), name: str = "g") -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="neg")],
        name,
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


class Clock:
    """A clock that only inferences move, each by the given seconds, and the timer of measurements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rig: Any, seconds: float = 0.0) -> None:
        self.rig, self.seconds = rig, seconds
        self.limits: list[tuple[float, Any]] = []
        monkeypatch.setattr("engine_auto.selection.deadline_timer", self)
        monkeypatch.setattr("engine_auto.measuring.time", self)
        monkeypatch.setattr("engine.lowering.tuning.time", self)

    def call_after(self, seconds: float, action: Callable[[], None]) -> Deadline:
        self.limits.append((seconds, action))
        return Deadline(action)

    def perf_counter(self) -> float:
        return (self.rig.acme.inferences + self.rig.bolt.inferences) * self.seconds

    def perf_counter_ns(self) -> int:
        return int(self.perf_counter() * 1e9)


def devices_of(network: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = network.get_metric("EXECUTION_DEVICES")
    return found


def test_the_first_inference_does_not_wait_for_other_devices(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    network = rig.compile(negation())
    np.testing.assert_array_equal(network(X)["y"], -X)
    assert devices_of(network) == ("BOLT",)
    assert not network.get_metric("CHOICE_IS_FINAL")
    assert "ready first" in network.get_metric("CHOICE_REASON")
    assert network.get_metric("CANDIDATES")["ACME"]["state"] == "compiling"
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_the_faster_device_is_chosen(rig: Any, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.auto")
    rig.acme.compile_gate.clear()
    rig.bolt.seconds = 0.01
    rig.acme.offset = 1.0
    network = rig.compile(negation(), PERFORMANCE_HINT=hint)
    assert devices_of(network) == ("BOLT",)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert devices_of(network) == ("ACME",)
    np.testing.assert_array_equal(network(X)["y"], -X + 1)
    reason, candidates = network.get_metric("CHOICE_REASON"), network.get_metric("CANDIDATES")
    assert "fastest" in reason
    assert hint in reason
    assert candidates["ACME"]["milliseconds"] < 0.95 * candidates["BOLT"]["milliseconds"]
    assert (candidates["ACME"]["state"], candidates["BOLT"]["state"]) == ("chosen", "not chosen")
    assert any("begin on ACME" in record.message for record in caplog.records)


def test_a_device_that_is_not_clearly_faster_does_not_replace_the_first(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, rig, seconds=0.02)  # of each inference on either device
    rig.acme.compile_gate.clear()
    network = rig.compile(negation())
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert devices_of(network) == ("BOLT",)


def test_without_seconds_to_measure_the_first_is_kept(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    rig.bolt.seconds = 0.01
    network = rig.compile(negation(), MEASURE_SECONDS=0)
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert devices_of(network) == ("BOLT",)
    assert "MEASURE_SECONDS is 0" in network.get_metric("CHOICE_REASON")


def test_running_inferences_end_where_they_began(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    rig.bolt.offset, rig.acme.offset = 10.0, 20.0
    network = rig.compile(negation(), MEASURE_SECONDS=60)
    rig.bolt.infer_gate.clear()
    request = network.create_infer_request()
    request.start_async(X)
    while not rig.bolt.inferences:
        threading.Event().wait(0.001)
    selection = network.selection
    rig.acme.compile_gate.set()
    selection.changed.wait_for(lambda: len(selection.networks()) == 2, LIMIT)
    acme = next(each for each in selection.candidates if each.name == "ACME")
    selection._settle(acme, "by hand")  # BOLT waits, and so cannot be measured
    np.testing.assert_array_equal(network(X)["y"], -X + 20)
    rig.bolt.infer_gate.set()
    request.wait(LIMIT)
    np.testing.assert_array_equal(request.results["y"], -X + 10)


def test_unknown_shapes_are_measured_with_those_of_the_first_inference(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    rig.bolt.seconds = 0.01
    network = rig.compile(negation(("N", 3)))
    rig.acme.compile_gate.set()
    assert not network.wait_for_choice(LIMIT), "it needs an inference, for which it must not wait here"
    assert not network.get_metric("CHOICE_IS_FINAL")
    assert devices_of(network) == ("BOLT",)
    assert "first inference" in network.get_metric("CHOICE_REASON")
    network(X[:0])  # of an empty batch, the time says nothing
    assert not network.wait_for_choice(LIMIT)
    rig.acme.infer_gate.clear()
    network(X)
    while not rig.acme.inferences:
        threading.Event().wait(0.001)
    assert network.get_metric("CHOICE_REASON") == "it was ready first; ACME and BOLT are being measured"
    rig.acme.infer_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert network.get_metric("CHOICE_IS_FINAL")
    assert devices_of(network) == ("ACME",)
    assert "fastest" in network.get_metric("CHOICE_REASON")


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_the_time_to_measure_holds_while_a_device_compiles_for_new_shapes(
    rig: Any, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, rig)
    rig.acme.compile_gate.clear()
    rig.acme.infer_gate.clear()  # its first inference does not end
    network = rig.compile(negation(("N", 3)), MEASURE_SECONDS=2, PERFORMANCE_HINT=hint)
    rig.acme.compile_gate.set()
    assert not network.wait_for_choice(LIMIT)
    network(X)
    while not rig.acme.inferences:
        threading.Event().wait(0.001)
    ((seconds, passed),) = clock.limits
    assert seconds == 2
    passed()
    assert network.wait_for_choice(0)
    assert devices_of(network) == ("BOLT",)
    reason = network.get_metric("CHOICE_REASON")
    assert "no measurement finished in 2 s: the first inference on ACME took longer; raise MEASURE_SECONDS" in reason
    selection = network.selection
    assert selection.changed.wait_for(lambda: not selection._is_busy_measuring, LIMIT), "the inference was cancelled"
    assert network.get_metric("CHOICE_REASON") == reason
    assert network.get_metric("CANDIDATES")["ACME"]["state"] == "not chosen"


def test_no_inference_begins_after_the_time_to_measure(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, rig, seconds=0.75)
    rig.bolt.compile_gate.clear()
    network = rig.compile(negation(), MEASURE_SECONDS=2)
    rig.bolt.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    assert "no measurement finished in 2 s" in network.get_metric("CHOICE_REASON")
    assert rig.acme.inferences + rig.bolt.inferences == 3, "2 s have passed in the third of 0.75 s"


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_the_time_to_measure_ends_an_inference_that_runs(rig: Any, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, rig)
    rig.acme.compile_gate.clear()
    network = rig.compile(negation(), MEASURE_SECONDS=2, PERFORMANCE_HINT=hint)
    rig.acme.compile_gate.set()
    while rig.acme.inferences < 3:  # on this clock, a turn never ends
        threading.Event().wait(0.001)
    rig.acme.infer_gate.clear()
    clock.limits[0][1]()
    assert network.wait_for_choice(0)
    selection = network.selection
    assert selection.changed.wait_for(lambda: not selection._is_busy_measuring, LIMIT)


def test_a_device_that_fails_before_the_choice_is_not_in_its_reason(rig: Any, new_device: Any) -> None:
    """The device that took over is measured like the others, and the reason tells what is so now."""
    plugin, cask = new_device("CASK")
    rig.core.register_plugin("CASK", plugin)
    rig.bolt.compile_gate.clear()
    cask.compile_gate.clear()
    rig.acme.infer_error = DeviceError("the driver says no")
    network = rig.compile(negation(("N", 3)), "AUTO:ACME,BOLT,CASK")
    request = network.create_infer_request()
    rig.bolt.compile_gate.set()
    with pytest.warns(RuntimeWarning, match="ACME failed"):
        request.infer(X)
    cask.compile_gate.set()
    cask.seconds = 0.02
    network.wait_for_choice(LIMIT)
    assert network.get_metric("CHOICE_REASON").startswith("ACME failed: DeviceError: the driver says no; others are")
    network(X)
    assert network.wait_for_choice(LIMIT)
    assert devices_of(network) == ("BOLT",)
    reason, candidates = network.get_metric("CHOICE_REASON"), network.get_metric("CANDIDATES")
    assert "it was measured to be the fastest for LATENCY: BOLT" in reason
    assert [candidates[name]["state"] for name in ("ACME", "BOLT", "CASK")] == ["failed", "chosen", "not chosen"]


def test_a_later_compilation_goes_to_the_chosen_device(rig: Any, choices_folder: Path) -> None:
    rig.bolt.seconds = 0.01
    assert rig.compile(negation()).wait_for_choice(LIMIT)
    compiled = rig.bolt.compiled
    network = rig.compile(negation())
    assert network.get_metric("CHOICE_IS_FINAL")
    assert devices_of(network) == ("ACME",)
    assert "measured earlier: ACME" in network.get_metric("CHOICE_REASON")
    assert rig.bolt.compiled == compiled
    assert list(choices_folder.rglob("auto-choices-*.json"))
    for other in ({"PERFORMANCE_HINT": "THROUGHPUT"}, {"REUSE_CHOICE": False}):
        assert "earlier" not in rig.compile(negation(), **other).get_metric("CHOICE_REASON")
    assert "earlier" not in rig.compile(negation((4, 5))).get_metric("CHOICE_REASON")


def test_a_choice_that_others_may_have_disturbed_is_not_kept(
    rig: Any, choices_folder: Path, other_load: Callable[[float], None]
) -> None:
    other_load(0.5)
    rig.bolt.seconds = 0.01
    network = rig.compile(negation())
    assert network.wait_for_choice(LIMIT)
    assert devices_of(network) == ("ACME",), "it is used now"
    assert "not kept, as other processes used 50%" in network.get_metric("CHOICE_REASON")
    assert not list(choices_folder.rglob("auto-choices-*.json"))
    assert "earlier" not in rig.compile(negation()).get_metric("CHOICE_REASON")


def test_the_load_of_others_is_measured() -> None:
    """A process that computes uses a part of the machine; this process does not count."""
    code = "import time; end = time.time() + 2\nwhile time.time() < end: pass"
    load = OtherLoad()
    with subprocess.Popen([sys.executable, "-c", code]):
        time.sleep(1.5)
        assert MEASURED_SHARE(load) > 0.3 / (os.cpu_count() or 1)
    assert 0 <= MEASURED_SHARE(OtherLoad()) <= 1


def test_choices_and_networks_are_kept_in_the_cache_folder(tmp_path: Path) -> None:
    core = Core()
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    first = core.compile_model(negation(), "AUTO:CPU,TEMPLATE", config)
    second = core.compile_model(negation(), "AUTO:CPU,TEMPLATE", config)
    assert not first.get_metric("LOADED_FROM_CACHE")
    assert second.get_metric("LOADED_FROM_CACHE")
    (blob,) = (tmp_path / "cache").glob("*.blob")
    assert core.check_blob(blob).manifest.device == "CPU"  # usable without AUTO, too


def test_a_damaged_file_of_choices_is_replaced(rig: Any, choices_folder: Path) -> None:
    assert rig.compile(negation()).wait_for_choice(LIMIT)
    (file,) = choices_folder.rglob("auto-choices-*.json")
    text = file.read_text().replace('milliseconds\\": {', 'milliseconds\\": [')
    assert text != file.read_text()
    file.write_text(text)
    network = rig.compile(negation())
    assert network.wait_for_choice(LIMIT)
    assert "earlier" not in network.get_metric("CHOICE_REASON")
    assert "earlier" in rig.compile(negation()).get_metric("CHOICE_REASON")


def test_the_reference_device_is_the_last_resort(rig: Any) -> None:
    rig.acme.refuses = rig.bolt.refuses = True
    network = rig.compile(negation(), "AUTO:TEMPLATE,ACME,BOLT")
    assert devices_of(network) == ("TEMPLATE",)
    assert network.get_metric("CHOICE_IS_FINAL")
    reason = network.get_metric("CHOICE_REASON")
    assert "no other device can be used" in reason
    assert "ACME has no kernel" in reason


def test_without_a_list_all_devices_that_compute_are_considered(rig: Any) -> None:
    network = rig.core.compile_model(negation())
    assert network.wait_for_choice(LIMIT)
    candidates = network.get_metric("CANDIDATES")
    assert {"ACME", "BOLT", "CPU", "TEMPLATE"} <= set(candidates)
    assert candidates["TEMPLATE"]["state"] == "waiting"
    assert "runs on other devices" in candidates["HETERO"]["why"]


def test_a_device_that_must_be_named_is_a_candidate_only_in_a_list(rig: Any, new_device: Any) -> None:
    acme, _ = new_device("RUNTIME")

    class Named(acme):  # type: ignore[misc]
        def metric(self, metric: str, device_id: str) -> object:
            return True if metric == "ONLY_IF_NAMED" else super().metric(metric, device_id)

        def device_ids(self) -> Sequence[str]:
            looked_for.append(self.name)
            return tuple(super().device_ids())

    looked_for: list[str] = []
    rig.core.register_plugin("RUNTIME", Named)
    network = rig.core.compile_model(negation())
    assert network.wait_for_choice(LIMIT)
    assert not looked_for, "which may load a runtime that nobody asked for"
    assert "as in AUTO:RUNTIME" in network.get_metric("CANDIDATES")["RUNTIME"]["why"]
    assert devices_of(rig.core.compile_model(negation(), "AUTO:RUNTIME")) == ("RUNTIME",)


# -- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        ("AUTO:NOPE,WRONG", DeviceNotFoundError, ("no device can be used", "NOPE", "WRONG")),
        ("AUTO:NOPE", DeviceNotFoundError, ("no plugin provides device 'NOPE'",)),
        ("AUTO:AUTO", DeviceNotFoundError, ("'AUTO'", "runs on other devices")),
        ("AUTO:CPU(16)", DeviceNotFoundError, ("CPU(16)", "parentheses")),
        ("AUTO:CPU,CPU", DeviceNotFoundError, ("listed twice",)),
    ],
)
def test_wrong_lists(device: str, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        Core().compile_model(negation(), device)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("other", ["NOPE", "HETERO"])
def test_a_listed_device_that_cannot_be_used_is_left_with_a_warning(rig: Any, other: str) -> None:
    rig.acme.compile_gate.clear()
    threading.Timer(0.2, rig.acme.compile_gate.set).start()  # so that the warning is not given in the background
    with pytest.warns(RuntimeWarning, match=f"{other} is left out"):
        network = rig.compile(negation(), f"AUTO:{other},ACME")
    assert devices_of(network) == ("ACME",)
    assert network.wait_for_choice(LIMIT)
    assert network.get_metric("CANDIDATES")[other]["state"] == "left out"


def test_a_model_that_no_device_runs(rig: Any) -> None:
    rig.acme.refuses = rig.bolt.refuses = True
    with pytest.raises(UnsupportedError, match=r"no device runs the whole model: ACME: .*`neg`.*; BOLT: ") as caught:
        rig.compile(negation())
    assert "\n" not in str(caught.value)
    answer = rig.core.query_model(negation(), "AUTO:ACME,BOLT")
    assert not answer.is_supported


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_exclusive_requests_wait_for_those_of_other_networks(rig: Any, is_exclusive: bool) -> None:
    network = rig.core.compile_model(negation(), "ACME", {"EXCLUSIVE_ASYNC_REQUESTS": is_exclusive})
    assert (executor_of(network, "ACME") is network.task_executor) is is_exclusive


def test_configuration_of_another_device() -> None:
    with pytest.raises(PropertyError, match="'OPENCL', which is not among the devices CPU"):
        Core().compile_model(negation(), "AUTO:CPU", {"DEVICE_PROPERTIES": {"OPENCL": {}}})


def test_an_invalid_model_is_the_error_of_the_model(rig: Any) -> None:
    model = negation()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises((ModelError, UnsupportedError), match="NoSuchOperator"):
        rig.compile(model)


# -- without AUTO -------------------------------------------------------------------------------------------


def test_the_default_device() -> None:
    core = Core()
    assert core.default_device == "AUTO"
    assert devices_of(core.compile_model(negation(), config={"DEVICE_PRIORITIES": "CPU"})) == ("CPU",)


# -- the end ------------------------------------------------------------------------------------------------


def test_a_network_that_is_not_used_any_more_is_freed_while_a_device_compiles(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    network = rig.compile(negation(), MEASURE_SECONDS=60)
    selection, gone = network.selection, weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None
    rig.acme.compile_gate.set()
    selection.changed.wait_for(lambda: not selection._pending, LIMIT)
    assert rig.bolt.inferences == rig.acme.inferences == 0  # nothing was measured
    assert not selection.is_final


def test_a_network_that_was_not_chosen_is_freed(rig: Any) -> None:
    rig.acme.compile_gate.clear()
    rig.bolt.seconds = 0.01
    network = rig.compile(negation())
    network(X)
    first = weakref.ref(network.selection.now()[1])
    rig.acme.compile_gate.set()
    assert network.wait_for_choice(LIMIT)
    network(X)
    for _ in range(1000):  # threads of its executors may be about to end
        gc.collect()
        if first() is None:
            break
        threading.Event().wait(0.01)
    assert first() is None


def test_results_are_the_same_after_a_round_trip(rig: Any, tmp_path: Path) -> None:
    rig.bolt.seconds = 0.01
    network = rig.compile(negation())
    network.export_model(tmp_path / "network.blob")  # waits for the choice
    assert devices_of(network) == ("ACME",)
    again = rig.core.import_model(tmp_path / "network.blob")
    assert devices_of(again) == ("ACME",)
    np.testing.assert_array_equal(again(X)["y"], -X)
    assert again.get_metric("CHOICE_REASON") == "the blob is for it"
