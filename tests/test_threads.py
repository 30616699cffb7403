"""Interrupts in several threads. If these fail, after Ctrl-C other threads wait forever, or an error is shown although
nothing is wrong.

A profile function raises `KeyboardInterrupt` at each moment in turn at which CPython would: where a function of Python
begins, and after one of C. Each case is a process of its own, and one that hangs is ended by its alarm.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.generation import Scheduler
from engine.ir import Model, Parameter, Result, f32
from engine.passes import MakeStateful
from engine.runtime.benchmark import measure
from engine.threads import Signal, in_threads, start_thread

SECONDS = 20
NOT_IN_TIME, HANGING = 3, -signal.SIGALRM


def test_results_come_in_order_from_several_threads() -> None:
    met = threading.Barrier(3)

    def square(n: int) -> int:
        if n < 3:
            met.wait(SECONDS)
        return n * n

    assert in_threads(square, range(20), 3, "squares") == [n * n for n in range(20)]
    assert in_threads(square, [], 3, "squares") == []


def test_the_first_error_is_raised_and_what_has_not_begun_does_not_begin() -> None:
    begun: list[int] = []

    def fail(n: int) -> None:
        begun.append(n)
        time.sleep(0.01)
        raise ValueError(n)

    with pytest.raises(ValueError, match="0"):
        in_threads(fail, range(100), 2, "failing")
    assert len(begun) < 100


def test_a_system_without_more_threads_works_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert in_threads(abs, [-1, -2], 2, "none") == [1, 2]


def test_a_signal_wakes_who_waits_and_ends_at_its_time() -> None:
    lock, values = threading.Lock(), list[int]()
    changed = Signal(lock)
    assert changed.wait_for(lambda: len(values), timeout=0.01) == 0
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(changed.wait_for(lambda: len(values)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    with lock:
        values.append(1)
        changed.notify_all()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [1, 1, 1]


def interrupted_everywhere(act: Callable[[], object], files: tuple[str, ...], step: int = 1) -> None:
    """Interrupt `act` at every `step`-th moment of code in `files`, and repeat it: it must work, and not hang."""
    count, failures = 1, list[str]()
    while True:
        child = os.fork()
        if child == 0:
            os._exit(_one_case(act, files, count))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == NOT_IN_TIME:
            break
        if status:
            failures.append(f"moment {count}: {'hangs' if status == HANGING else f'status {status}'}")
        count += step
    assert count > 3 * step
    assert not failures


def _one_case(act: Callable[[], object], files: tuple[str, ...], number: int) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(files):
            count += 1
            if count == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    status = 0
    try:
        sys.setprofile(profile)
        act()
        status = NOT_IN_TIME
    except KeyboardInterrupt:
        pass
    except BaseException:
        status = 4  # another error in place of the interrupt
    finally:
        sys.setprofile(None)
    try:
        act()
    except BaseException:
        return 5
    return status


def test_work_in_threads_can_be_interrupted_at_any_moment() -> None:
    interrupted_everywhere(lambda: in_threads(abs, [-1, -2, -3], 2, "abs"), ("engine/threads.py", "/threading.py"))


def test_waiting_can_be_interrupted_at_any_moment() -> None:
    lock, values = threading.RLock(), list[int]()
    changed = Signal(lock)

    def add() -> None:
        with lock:
            values.append(1)
            changed.notify_all()

    def act() -> None:
        before = len(values)
        start_thread(threading.Thread(target=add, daemon=True))
        assert changed.wait_for(lambda: len(values) > before)

    interrupted_everywhere(act, ("engine/threads.py", "/threading.py"))


def test_generating_can_be_interrupted_at_any_moment() -> None:
    """With a condition, an interrupted `submit` left its lock taken, so that the scheduler's thread waited for ever."""
    core = Core()
    model = core.read_model(Path(__file__).parent / "fixtures" / "decoders" / "llama.dynamo23.onnx")
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")
    with Scheduler(network, 1) as first:
        expected = first.submit([3, 14], 2).result()
    scheduler = Scheduler(network, 1)

    def act() -> None:
        assert scheduler.submit([3, 14], 2).result() == expected
        with Scheduler(network, 1) as short:
            assert short.submit([3, 14], 1).result() == expected[:1]

    interrupted_everywhere(act, ("engine/generation/scheduler.py", "engine/threads.py", "/threading.py"), 3)


def test_measuring_can_be_interrupted_at_any_moment() -> None:
    x = Parameter(f32, [2, 4], "x")
    network = Core().compile_model(Model([Result(ops.Tanh(x), "y")], [x]), "TEMPLATE")
    feeds = {"x": np.zeros((2, 4), np.float32)}

    def act() -> None:
        assert measure(network, feeds, requests=2, count=4).count == 4

    interrupted_everywhere(act, ("engine/runtime/benchmark.py", "engine/threads.py", "/threading.py"), 3)


def test_compiling_for_several_devices_can_be_interrupted_at_any_moment() -> None:
    """With `concurrent.futures`, a compilation hung: an interrupt left the lock of its semaphore taken."""
    x = Parameter(f32, [2, 4], "x")
    value: Any = x
    for index in range(4):
        value = ops.Tanh(value)
        value.rt_info["affinity"] = ("CPU", "TEMPLATE")[index % 2]
    model, core = Model([Result(value, "y")], [x]), Core()
    feeds = {"x": np.zeros((2, 4), np.float32)}
    core.compile_model(model, "HETERO:CPU,TEMPLATE")

    def act() -> None:
        core.compile_model(model, "HETERO:CPU,TEMPLATE")(feeds)

    files = ("engine/threads.py", "/threading.py", "concurrent/futures/thread.py", "concurrent/futures/_base.py")
    interrupted_everywhere(act, files, 7)
