"""Inferences as futures and in coroutines: results, errors, cancellation, order, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, wait
from typing import Any

import numpy as np
import pytest

from engine import AsyncInferQueue, Core, Model, ops
from engine.errors import Busy, Cancelled, DeadlineExceeded, EngineError, InputError
from engine.ir import Constant, Parameter, Result, Variable, boolean, f32, i64
from engine.plugin_api import ExecutableNetwork


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.fixture(params=["TEMPLATE", "CPU"])
def doubling(request: pytest.FixtureRequest, core: Core) -> ExecutableNetwork:
    x = Parameter(f32, ["N"], "x")
    return core.compile_model(Model([Result(ops.Add(x, x), "y")], [x]), request.param, {"NUM_STREAMS": 2})


@pytest.fixture(scope="module")
def long(core: Core) -> ExecutableNetwork:
    """A Loop that takes as many iterations as its input says: for ever, in practice."""
    trips, x = Parameter(i64, [], "trips"), Parameter(f32, [64, 64], "x")
    count, keep, state = Parameter(i64, [], "i"), Parameter(boolean, [], "keep"), Parameter(f32, [64, 64], "state")
    body = Model([Result(ops.Identity(keep)), Result(ops.Sin(state))], [count, keep, state], name="body")
    loop = ops.create("Loop", [trips, Constant(True), x], {"body": body}, num_outputs=1)
    return core.compile_model(Model([Result(loop, "y")], [trips, x]), "TEMPLATE", {"NUM_STREAMS": 1})


ENDLESS = {"trips": np.array(1 << 40), "x": np.zeros((64, 64), np.float32)}


def test_many_futures_have_their_own_results(doubling: ExecutableNetwork) -> None:
    given = [np.full(1000 + i, i, np.float32) for i in range(100)]
    futures = [doubling.submit({"x": x}) for x in given]
    for x, future in zip(given, futures, strict=True):
        np.testing.assert_array_equal(future.result(60)["y"], x + x)


def test_threads_submit_at_once(doubling: ExecutableNetwork) -> None:
    sums: dict[int, float] = {}

    def work(number: int) -> None:
        futures = [doubling.submit([np.full(500, number, np.float32)]) for _ in range(20)]
        sums[number] = sum(float(future.result(60)["y"].sum()) for future in futures)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: 20 * 500 * 2 * number for number in range(8)}


def test_a_wrong_input_is_the_error_of_its_future_only(doubling: ExecutableNetwork) -> None:
    one = np.ones(3, np.float32)
    futures = [doubling.submit({"x": one}), doubling.submit({"z": one}), doubling.submit({"x": one})]
    wait(futures, 60)
    assert isinstance(futures[1].exception(), InputError)
    assert [futures[0].result()["y"].tolist(), futures[2].result()["y"].tolist()] == [[2, 2, 2]] * 2


def test_a_request_that_cannot_be_made_leaves_nothing_waiting(
    doubling: ExecutableNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise MemoryError("no memory for a request")

    with monkeypatch.context() as broken:
        broken.setattr(type(doubling), "create_infer_request_impl", fail)
        with pytest.raises(EngineError, match="no memory for a request"):
            doubling.submit(np.ones(3, np.float32))
    assert doubling.submit(np.ones(3, np.float32)).result(60)["y"].tolist() == [2, 2, 2]


def test_what_waits_is_cancelled_at_once_and_what_runs_at_its_next_check(long: ExecutableNetwork) -> None:
    running, waiting = long.submit(ENDLESS), long.submit(ENDLESS)
    assert waiting.cancel()
    assert waiting.cancelled()
    assert not running.cancel()  # it has begun, and ends with an error
    assert isinstance(running.exception(60), Cancelled)
    with pytest.raises(CancelledError):
        waiting.result()
    few = {**ENDLESS, "trips": np.array(2)}
    assert long.submit(few).result(60)["y"].shape == (64, 64)  # the request is usable again


def test_a_deadline_counts_from_the_beginning_of_the_inference(long: ExecutableNetwork) -> None:
    futures = [long.submit(ENDLESS, deadline=0.2) for _ in range(3)]
    assert [type(future.exception(60)) for future in futures] == [DeadlineExceeded] * 3


def test_variables_begin_anew_in_each_inference(core: Core) -> None:
    x, past = Parameter(f32, [2], "x"), Parameter(f32, [2], "past")
    total = ops.Add(x, past)
    model = Model([Result(total, "y"), Result(total, "present")], [x, past])
    model.add_variable(Variable("sum", "past", "present", np.zeros(2, np.float32)))
    network = core.compile_model(model, "CPU")
    futures = [network.submit(np.ones(2, np.float32)) for _ in range(5)]
    assert [future.result(60)["y"].tolist() for future in futures] == [[1, 1]] * 5


def test_tasks_of_a_group(doubling: ExecutableNetwork) -> None:
    async def main() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(doubling.infer_async(np.full(4, i, np.float32))) for i in range(50)]
        return [task.result()["y"][0] for task in tasks]

    assert asyncio.run(main()) == [2 * i for i in range(50)]


def test_cancelling_a_task_cancels_the_inference(long: ExecutableNetwork) -> None:
    async def main() -> None:
        task = asyncio.create_task(long.infer_async(ENDLESS))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    few = {**ENDLESS, "trips": np.array(1)}
    assert long.submit(few).result(60)["y"].shape == (64, 64)


def test_a_queue_in_coroutines(doubling: ExecutableNetwork) -> None:
    results: dict[int, float] = {}
    beats = 0

    def keep(request: Any, index: int) -> None:
        results[index] = float(request.results["y"][0])

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async def main() -> None:
        heart = asyncio.create_task(beat())
        async with AsyncInferQueue(doubling, 2, callback=keep) as queue:
            for i in range(100):
                await queue.start(np.full(2000, i, np.float32), i)
            assert len(queue) == 2
        heart.cancel()

    asyncio.run(main())
    assert results == {i: 2.0 * i for i in range(100)}
    assert beats > 1


def test_a_queue_in_coroutines_reports_errors_and_rejects(long: ExecutableNetwork) -> None:
    async def main() -> None:
        queue = AsyncInferQueue(long, 1, policy="reject")
        await queue.start(ENDLESS)
        with pytest.raises(Busy):
            await queue.start(ENDLESS)
        queue.cancel()
        with pytest.raises(Cancelled):
            await queue.join()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with AsyncInferQueue(long, 1) as other:
                await other.start(ENDLESS)
                raise ZeroDivisionError
        assert other.is_ready

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_process_does_not_wait_for_futures_of_its_parent(long: ExecutableNetwork) -> None:
    running, waiting = long.submit(ENDLESS), long.submit(ENDLESS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            errors = [future.exception(30) for future in (running, waiting)]
            is_told = all("parent process" in str(error) for error in errors)
            few = {**ENDLESS, "trips": np.array(1)}
            code = 0 if is_told and long.submit(few).result(30)["y"].shape == (64, 64) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    waiting.cancel()
    running.cancel()
    running.exception(60)
