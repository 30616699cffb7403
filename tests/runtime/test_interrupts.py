"""Ctrl-C wherever Python handles it during a start: the request or queue stays usable, and is not busy for ever."""

from __future__ import annotations

import opcode
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import InferError
from engine.runtime import AsyncInferQueue, AsyncInferRequest, RequestState, ThreadExecutor

LONG = 30.0
MODULES = ("async_request.py", "queue.py", "executors.py", "deadlines.py")
X = np.full((1, 4), 3, np.float32)


def interrupted_at(place: int, call: Callable[[], object], modules: tuple[str, ...] = MODULES) -> bool:
    """Run `call` with an interrupt at the `place`-th place where Python handles signals; False if it ends before.

    These are the beginnings of functions and the ends of calls, in the runtime's modules, or in others.
    """
    seen = 0
    last: dict[int, str] = {}

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(modules):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            former = last.get(id(frame), "RESUME")
            last[id(frame)] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
            if former.startswith(("CALL", "RESUME")):
                seen += 1
                if seen == place:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except InferError as e:
        return str(e)
    return ""


def start(request: AsyncInferRequest) -> None:
    request.start_async({"x": X}, deadline=LONG)


def infer(request: AsyncInferRequest) -> None:
    request.infer({"x": X})


@pytest.mark.parametrize("action", [start, infer])
def test_a_request_is_usable_wherever_its_start_was_interrupted(
    make_network: Callable[..., Any], action: Callable[[AsyncInferRequest], None]
) -> None:
    network, place = make_network(), 1
    while True:
        request = network.create_infer_request()
        was_interrupted = interrupted_at(place, lambda request=request: action(request))
        error = error_of(lambda request=request: request.wait(LONG))
        assert "interrupted by KeyboardInterrupt" in error or "never started" in error or not error, f"place {place}"
        assert request.state is RequestState.IDLE, f"place {place}"
        np.testing.assert_array_equal(request.infer({"x": X})["y"], 2 * X)
        request.start_async({"x": X})
        request.wait(LONG)
        if not was_interrupted:
            break
        place += 1
    assert place > 10


def test_a_queue_keeps_all_of_its_requests_wherever_a_start_was_interrupted(make_network: Callable[..., Any]) -> None:
    network, place = make_network(), 1
    while True:
        done: list[int] = []
        queue = AsyncInferQueue(network, 2, callback=lambda request, job, done=done: done.append(job))
        was_interrupted = interrupted_at(place, lambda queue=queue: queue.start_async({"x": X}, 0))
        error = error_of(lambda queue=queue: queue.wait_all(LONG))
        assert "interrupted by KeyboardInterrupt" in error or not error, f"place {place}"
        for job in (1, 2, 3, 4):
            queue.start_async({"x": X}, job, timeout=LONG)
        queue.wait_all(LONG)
        assert sorted(set(done) - {0}) == [1, 2, 3, 4], f"place {place}"
        assert len(queue._idle) == len(set(queue._idle)) == 2, f"place {place}"
        if not was_interrupted:
            break
        place += 1
    assert place > 10


def test_an_executor_runs_all_tasks_after_an_interrupt_in_the_midst_of_waking_its_thread() -> None:
    executor, place, was_interrupted = ThreadExecutor("e"), 1, True
    executor.submit(lambda: None)
    while was_interrupted:
        was_interrupted = interrupted_at(place, lambda: executor.submit(lambda: None), ("threading.py",))
        for _ in range(3):
            time.sleep(0.02)  # its thread waits for work again
            ran = threading.Event()
            executor.submit(ran.set)
            assert ran.wait(LONG), f"place {place}"
        place += 1
    assert place > 3
