"""A device that crashes, exits, hangs or leaks ends the inferences that it was running, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import Cancelled, DeadlineExceeded, DeviceError, OutOfMemoryError, UnsupportedError

from . import faulty_device as faulty
from .faulty_device import doubling, values

Compiled = Callable[..., Any]
HANG = 1.5
"""A HANG_TIMEOUT that the first inference of a new process keeps on a busy machine."""


def statistics(network: Any) -> dict[str, int]:
    return dict(network.get_property("PROCESS_STATISTICS"))


def assert_works(network: Any) -> None:
    x = values()
    assert np.array_equal(network({"x": x})["y"], x * 2)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (faulty.SEGFAULT, r"was ended by SIGSEGV during an inference:\n(.|\n)*faulty_device"),
        (faulty.KILLED, "was ended by SIGKILL during an inference"),
        (faulty.EXIT, "exited with status 3 during an inference"),
        (faulty.DIE_WITH_LOCKS, "was ended by SIGKILL during an inference"),
    ],
    ids=["segfault", "killed", "exit", "locks"],
)
def test_a_crash_ends_the_inference_and_the_next_one_works(compiled: Compiled, how: int, said: str) -> None:
    network = compiled()
    with pytest.raises(DeviceError, match=said):
        network({"x": values(how)})
    assert_works(network)
    found = statistics(network)
    assert (found["starts"], found["crashes"], found["hangs"]) == (2, 1, 0)


@pytest.mark.parametrize("how", [faulty.HANG, faulty.HANG_WITH_GIL], ids=["without the GIL", "with the GIL"])
def test_a_hang_ends_after_its_time(compiled: Compiled, how: int) -> None:
    network = compiled(HANG_TIMEOUT=HANG)
    pid = statistics(network)["pid"]
    with pytest.raises(DeviceError, match=r"no result within 1.5 s \(HANG_TIMEOUT\)"):
        network({"x": values(how)})
    assert_works(network)
    assert statistics(network)["hangs"] == 1
    assert statistics(network)["pid"] != pid
    assert has_ended(pid)


def has_ended(pid: int) -> bool:
    """Whether a process of this one ends within some seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("how", [faulty.HANG, faulty.HANG_WITH_GIL], ids=["without the GIL", "with the GIL"])
def test_a_deadline_is_kept_even_if_the_device_hangs(compiled: Compiled, how: int) -> None:
    network = compiled()
    request = network.create_infer_request()
    request.start_async({"x": values(how)}, deadline=0.2)
    with pytest.raises(DeadlineExceeded):
        request.wait(60)
    if how == faulty.HANG:  # another thread of the process works
        x = values()
        assert np.array_equal(request.infer({"x": x})["y"], x * 2)
        assert statistics(network)["starts"] == 1


def test_a_cancelled_inference_that_never_ends_counts_as_hung(compiled: Compiled) -> None:
    network = compiled(HANG_TIMEOUT=HANG)
    pid = statistics(network)["pid"]
    request = network.create_infer_request()
    request.start_async({"x": values(faulty.HANG)}, deadline=0.05)
    with pytest.raises(DeadlineExceeded):
        request.wait(60)
    time.sleep(HANG + 0.1)
    assert_works(network)
    assert statistics(network)["hangs"] == 1
    assert statistics(network)["pid"] != pid
    assert has_ended(pid)


def test_an_inference_that_cannot_be_sent_is_an_error_of_its_own(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = compiled()

    def fail(size: int, **_: object) -> None:
        raise OutOfMemoryError("there is no memory")

    with monkeypatch.context() as patch:
        patch.setattr("engine_isolated.channel.SharedMemory.created", fail)
        with pytest.raises(OutOfMemoryError, match="no memory"):
            network({"x": values()})
    assert_works(network)
    assert statistics(network)["starts"] == 1


def test_a_cancelled_inference_ends_in_the_process_and_its_place_is_used_again(compiled: Compiled) -> None:
    network = compiled()
    request = network.create_infer_request()
    for _ in range(3):
        request.start_async({"x": values(faulty.SLOW)})
        request.cancel()
        with pytest.raises(Cancelled):
            request.wait(60)
        assert_works(network)
    assert statistics(network)["starts"] == 1


def test_an_error_of_the_device_keeps_its_class_and_tells_where_it_was_raised(compiled: Compiled) -> None:
    network = compiled()
    with pytest.raises(DeviceError, match="the driver said no") as caught:
        network({"x": values(faulty.RAISE)})
    assert "faulty_device.py" in "".join(caught.value.__notes__)
    assert_works(network)
    assert statistics(network)["starts"] == 1


def test_inferences_of_other_threads_go_on(compiled: Compiled) -> None:
    network = compiled(MAX_CRASHES=1000)
    wrong: list[object] = []

    def work() -> None:
        x = values()
        for _ in range(30):
            try:
                if not np.array_equal(network({"x": x})["y"], x * 2):
                    wrong.append("a wrong result")
            except DeviceError:  # it was running in the process that crashed
                pass
            except Exception as e:
                wrong.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        with pytest.raises(DeviceError):
            network({"x": values(faulty.KILLED)})
    for thread in threads:
        thread.join()
    assert wrong == []
    assert_works(network)


def test_a_process_that_is_killed_while_inputs_are_written_costs_no_wrong_result(core: Core) -> None:
    network = core.compile_model(doubling(shape=(300, 1000)), "ISOLATED:FAULTY", {"MAX_CRASHES": 1000})
    x = values(shape=(300, 1000))
    for seconds in (0.0001, 0.001, 0.003):
        request = network.create_infer_request()
        request.infer({"x": x})
        timer = threading.Timer(seconds, os.kill, (statistics(network)["pid"], signal.SIGKILL))
        timer.start()
        for _ in range(20):
            try:
                assert np.array_equal(request.infer({"x": x})["y"], x * 2)
            except DeviceError as e:
                assert "SIGKILL during an inference" in str(e)  # noqa: PT017  (it may also be between two)
        timer.join()


def test_a_process_that_is_killed_between_inferences_is_replaced_unnoticed(compiled: Compiled) -> None:
    network = compiled()
    assert_works(network)
    os.kill(statistics(network)["pid"], signal.SIGKILL)
    # It ends while the next inference is sent, or before.
    assert_works(network)
    assert statistics(network)["crashes"] == 1


def test_the_next_process_loads_the_network_from_a_stated_cache(core: Core, tmp_path: Path) -> None:
    network = core.compile_model(doubling(), "ISOLATED:CPU", {"CACHE_DIR": str(tmp_path)})
    assert not network.get_property("LOADED_FROM_CACHE")
    os.kill(statistics(network)["pid"], signal.SIGKILL)
    assert_works(network)
    assert network.get_property("DEVICE_METRICS")["LOADED_FROM_CACHE"]
    assert list(tmp_path.glob("*.blob"))


def test_repeated_crashes_end_in_an_error(compiled: Compiled) -> None:
    network = compiled(MAX_CRASHES=3)
    for _ in range(3):
        with pytest.raises(DeviceError, match="exited with status 3"):
            network({"x": values(faulty.EXIT)})
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"ended 3 times in a row.*MAX_CRASHES.*exited with status 3"):
            network({"x": values()})
    assert statistics(network)["starts"] == 3


def test_a_result_makes_former_crashes_forgotten(compiled: Compiled) -> None:
    network = compiled(MAX_CRASHES=2)
    for _ in range(3):
        with pytest.raises(DeviceError):
            network({"x": values(faulty.EXIT)})
        assert_works(network)


def test_a_network_that_cannot_be_made_again_ends_in_an_error(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = compiled(doubling("crash again"), MAX_CRASHES=2)
    monkeypatch.setenv("FAULTY_COMPILE", "1")
    found: list[str] = []
    while len(found) < 4 and not any("2 times in a row" in each for each in found):
        with pytest.raises(DeviceError) as caught:
            network({"x": values(faulty.EXIT)})
        found.append(str(caught.value))
    assert "2 times in a row" in found[-1]
    assert any("exited with status 7 during 'compile'" in each for each in found)


@pytest.mark.parametrize(("name", "said"), [("crash", "SIGSEGV during 'compile'"), ("hang", "CALL_TIMEOUT")])
def test_a_compilation_that_ends_its_process_is_an_error(core: Core, name: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        core.compile_model(doubling(name), "ISOLATED:FAULTY", {"CALL_TIMEOUT": 4 if name == "hang" else 0})
    assert_works(core.compile_model(doubling(), "ISOLATED:FAULTY"))


def test_a_compilation_can_be_cancelled(core: Core) -> None:
    cancel = threading.Event()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    with pytest.raises(Cancelled):
        core.compile_model(doubling("hang"), "ISOLATED:FAULTY", cancel=cancel)
    timer.join()


def test_the_progress_of_a_compilation_is_told(core: Core) -> None:
    told: list[str] = []
    core.compile_model(doubling(), "ISOLATED:CPU", progress=lambda what, share: told.append(what))
    assert len(told) > 3


def test_a_leak_is_bounded(compiled: Compiled) -> None:
    base = statistics(compiled())["own_bytes"]
    network = compiled(MAX_PROCESS_BYTES=base + (50 << 20))
    for _ in range(9):
        assert np.array_equal(network({"x": values(faulty.LEAK)})["y"], values(faulty.LEAK) * 2)
    found = statistics(network)
    assert found["replaced"] >= 2
    assert found["own_bytes"] < base + (80 << 20)


def test_a_bound_below_the_network_itself_is_an_error(compiled: Compiled) -> None:
    with pytest.raises(UnsupportedError, match="MAX_PROCESS_BYTES, 1000"):
        compiled(MAX_PROCESS_BYTES=1000)


@pytest.mark.parametrize(("name", "said"), [("BROKEN", "the driver is missing"), ("DYING", "exited with status 5")])
def test_a_plugin_that_fails_when_it_is_created_does_so_in_the_process(core: Core, name: str, said: str) -> None:
    core.register_plugin(name, faulty.TARGET.replace("Faulty", name.capitalize()))
    for ask in (core.query_model, core.compile_model):
        with pytest.raises(Exception, match=said):
            ask(doubling(), f"ISOLATED:{name}")
