"""The queue before a network. If this fails, memory grows under load, or the model stops answering."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from engine_serve.named_locks import NamedLocks
from engine_serve.request_queue import RequestQueue, Times

from engine.errors import Busy, DeadlineExceeded, InputError


class Network:
    """Runs until it is told to go on; notes the order and the most that ran at once."""

    def __init__(self) -> None:
        self.is_open = False
        self.order: list[Any] = []
        self.left: list[tuple[Any, Future[Any]]] = []
        self.most = 0

    @property
    def running(self) -> int:
        self.left = [each for each in self.left if not each[1].done()]
        return len(self.left)

    def submit(self, inputs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.order.append(inputs)
        self.left.append((inputs, future))
        self.most = max(self.most, self.running)
        if self.is_open:
            self.open()
        return future

    def open(self) -> None:
        self.is_open = True
        for inputs, future in self.left:
            if future.done():
                continue
            if inputs == "bad":
                future.set_exception(InputError("bad"))
            else:
                future.set_result(inputs)

    def close(self) -> None:
        self.is_open = False


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def start(queue: RequestQueue, inputs: Any, deadline: float | None = None, size: int = 0) -> asyncio.Task[Any]:
    return asyncio.ensure_future(queue.infer(inputs, deadline, Times(), size))


def test_in_order_and_bounded() -> None:
    async def run() -> None:
        network = Network()
        queue = RequestQueue("model", network, 2, 3)  # type: ignore[arg-type]
        tasks = [start(queue, each) for each in range(5)]
        await settle()
        assert (queue.running, queue.waiting) == (2, 3)
        with pytest.raises(Busy, match="3 requests to model wait, and 2 run"):
            await queue.infer(5, None, Times())
        network.open()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
        assert (network.order, network.most) == ([0, 1, 2, 3, 4], 2)
        assert (queue.running, queue.waiting, queue.longest_run) == (0, 0, 0.0)

    asyncio.run(run())


def test_a_queue_of_no_size_accepts_what_can_run() -> None:
    async def run() -> None:
        network = Network()
        queue = RequestQueue("model", network, 1, 0)  # type: ignore[arg-type]
        task = start(queue, 0)
        await settle()
        with pytest.raises(Busy):
            await queue.infer(1, None, Times())
        network.open()
        assert await task == 0
        assert await queue.infer(2, None, Times()) == 2

    asyncio.run(run())


def test_bytes_that_wait_are_bounded() -> None:
    """Few large requests take as much memory as many small ones: what does not fit is refused, smaller ones are not."""

    async def run() -> None:
        network = Network()
        queue = RequestQueue("model", network, 1, 9, 100)  # type: ignore[arg-type]

        tasks = [start(queue, 0, size=1000), start(queue, 1, size=60), start(queue, 2, size=40)]
        await settle()
        assert (queue.running, queue.waiting, queue.waiting_bytes) == (1, 2, 100)
        with pytest.raises(Busy, match="2 requests to model that wait have 100 bytes, and this request 1; at most 100"):
            await queue.infer(3, None, Times(), 1)
        tasks[1].cancel()
        await settle()
        assert queue.waiting_bytes == 40
        with pytest.raises(Busy):
            await queue.infer(3, None, Times(), 61)
        tasks[1] = start(queue, 3, size=60)
        await settle()
        network.open()
        assert await asyncio.gather(*tasks) == [0, 3, 2]
        assert (network.order, queue.waiting_bytes) == ([0, 2, 3], 0)

    asyncio.run(run())


def test_deadlines_while_waiting_and_while_running() -> None:
    async def run() -> None:
        queue = RequestQueue("model", Network(), 1, 3)  # type: ignore[arg-type]
        tasks = [start(queue, each, 0.01) for each in range(2)]
        found = [str(each) for each in await asyncio.gather(*tasks, return_exceptions=True)]
        assert "passed while it ran" in found[0]
        assert "passed while it" in found[1]
        await settle()
        with pytest.raises(DeadlineExceeded, match="had passed when it arrived"):
            await queue.infer(0, 0.0, Times())
        assert (queue.running, queue.waiting) == (0, 0)

    asyncio.run(run())


def test_errors_and_cancellations_lose_no_slot() -> None:
    """Whatever ends at whatever moment, afterwards as many run as before."""

    async def run(seed: int) -> None:
        random, network = np.random.default_rng(seed), Network()
        queue = RequestQueue("model", network, 2, 50)  # type: ignore[arg-type]
        tasks = [start(queue, "bad" if random.random() < 0.3 else each, size=each) for each in range(30)]
        for _ in range(40):
            match random.integers(4):
                case 0:
                    tasks[random.integers(30)].cancel()
                case 1:
                    network.open()
                    await asyncio.sleep(0)
                    network.close()
                case _:
                    await asyncio.sleep(0)
        network.open()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle()
        assert (queue.running, queue.waiting, queue.waiting_bytes, network.running) == (0, 0, 0, 0)
        assert network.most <= 2
        network.close()
        again = [start(queue, each) for each in range(3)]
        await settle()
        assert (queue.running, queue.waiting) == (2, 1)
        network.open()
        assert await asyncio.gather(*again) == [0, 1, 2]

    for seed in range(50):
        asyncio.run(run(seed))


def test_a_device_that_hangs_gets_no_more_inferences() -> None:
    """Requests whose deadlines pass leave, and the inference stays visible: otherwise memory grows, and the health
    report is wrong.
    """

    async def run() -> None:
        network = Network()
        queue = RequestQueue("model", network, 1, 2)  # type: ignore[arg-type]
        first = start(queue, 0, 0.05)
        await settle()
        network.left[0][1].set_running_or_notify_cancel()
        with pytest.raises(DeadlineExceeded):
            await first
        for turn in range(5):
            with pytest.raises(DeadlineExceeded, match="waited in the queue"):
                await queue.infer(turn, 0.01, Times())
        assert (len(network.order), queue.running, queue.waiting) == (1, 1, 0)
        assert queue.longest_run > 0.05
        network.open()
        await settle()
        assert queue.running == 0
        assert await queue.infer(7, None, Times()) == 7

    asyncio.run(run())


def test_locks_of_names_are_held_by_one_and_kept_by_none() -> None:
    async def run() -> None:
        locks, inside = NamedLocks(), {"a": 0, "b": 0}

        async def use(name: str) -> None:
            async with locks.hold(name):
                inside[name] += 1
                await asyncio.sleep(0)
                assert inside[name] == 1
                inside[name] -= 1

        tasks = [asyncio.ensure_future(use(name)) for name in "abaabb"]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [False, False, True, False, False, False]
        assert [task.exception() for task in tasks if not task.cancelled()] == [None] * 5
        assert len(locks) == 0

    asyncio.run(run())
