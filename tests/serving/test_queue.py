"""The queue before a network. If this fails, memory grows under load, or the model stops answering."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from engine.errors import Busy, DeadlineExceeded, InputError
from engine.serving.request_queue import RequestQueue, Times


class Network:
    """Runs until it is told to go on; notes the order and the most that ran at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.order: list[Any] = []
        self.running = self.most = 0

    async def infer_async(self, inputs: Any) -> Any:
        self.order.append(inputs)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            if inputs == "bad":
                raise InputError("bad")
            return inputs
        finally:
            self.running -= 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def start(queue: RequestQueue, inputs: Any, deadline: float | None = None) -> asyncio.Task[Any]:
    return asyncio.ensure_future(queue.infer(inputs, deadline, Times()))


def test_in_order_and_bounded() -> None:
    async def run() -> None:
        network = Network()
        queue = RequestQueue("model", network, 2, 3)  # type: ignore[arg-type]
        tasks = [start(queue, each) for each in range(5)]
        await settle()
        assert (queue.running, queue.waiting) == (2, 3)
        with pytest.raises(Busy, match="3 requests to model wait, and 2 run"):
            await queue.infer(5, None, Times())
        network.gate.set()
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
        network.gate.set()
        assert await task == 0
        assert await queue.infer(2, None, Times()) == 2

    asyncio.run(run())


def test_deadlines_while_waiting_and_while_running() -> None:
    async def run() -> None:
        queue = RequestQueue("model", Network(), 1, 3)  # type: ignore[arg-type]
        tasks = [start(queue, each, 0.01) for each in range(2)]
        found = [str(each) for each in await asyncio.gather(*tasks, return_exceptions=True)]
        assert "passed while it ran" in found[0]
        assert "passed while it" in found[1]
        with pytest.raises(DeadlineExceeded, match="had passed when it arrived"):
            await queue.infer(0, 0.0, Times())
        assert (queue.running, queue.waiting) == (0, 0)

    asyncio.run(run())


def test_errors_and_cancellations_lose_no_slot() -> None:
    """Whatever ends at whatever moment, afterwards as many run as before."""

    async def run(seed: int) -> None:
        random, network = np.random.default_rng(seed), Network()
        queue = RequestQueue("model", network, 2, 50)  # type: ignore[arg-type]
        tasks = [start(queue, "bad" if random.random() < 0.3 else each) for each in range(30)]
        for _ in range(40):
            match random.integers(4):
                case 0:
                    tasks[random.integers(30)].cancel()
                case 1:
                    network.gate.set()
                    await asyncio.sleep(0)
                    network.gate.clear()
                case _:
                    await asyncio.sleep(0)
        network.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (queue.running, queue.waiting, network.running) == (0, 0, 0)
        assert network.most <= 2
        network.gate.clear()
        again = [start(queue, each) for each in range(3)]
        await settle()
        assert (queue.running, queue.waiting) == (2, 1)
        network.gate.set()
        assert await asyncio.gather(*again) == [0, 1, 2]

    for seed in range(50):
        asyncio.run(run(seed))
