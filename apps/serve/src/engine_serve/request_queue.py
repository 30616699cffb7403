"""A bounded queue before a network: requests that cannot run yet wait, and are refused when too many do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import Busy, DeadlineExceeded
from engine.plugin_api import ExecutableNetwork
from engine.runtime import InferResult


@dataclass(slots=True)
class Times:
    """When a request arrived, began and ended, in seconds of `time.perf_counter`; 0 for events that did not happen."""

    arrived: float = 0.0
    began: float = 0.0
    ended: float = 0.0


class QueueState(Protocol):
    """The state of a queue, for metrics and health."""

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the inputs of the requests that wait have."""

    @property
    def running(self) -> int:
        """The number of requests that are computed."""

    @property
    def longest_run(self) -> float:
        """For how many seconds the oldest running inference has run."""


class RequestQueue:
    """Runs inferences of one network, at most `slots` at once, in the order of their arrival.

    Not thread-safe: used by one event loop. A cancelled task leaves the queue; if its inference runs, that is
    cancelled, and keeps its slot until the device ends it. So a device that hangs cannot collect inferences.

    Args:
        name: of the model, for messages.
        slots: how many inferences run at once.
        size: how many requests wait beyond them.
        size_bytes: how many bytes the inputs of the requests that wait may have together; None for no bound.
    """

    def __init__(
        self, name: str, network: ExecutableNetwork, slots: int, size: int, size_bytes: int | None = None
    ) -> None:
        self._name, self._network, self._slots, self._size = name, network, slots, size
        self._size_bytes, self._waiting_bytes = size_bytes, 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """The event that wakes a request, and the bytes of its inputs."""
        self._began: dict[int, float] = {}
        self._count = 0
        self._taken = 0
        """How many slots are taken, including those of requests that were woken but have not continued yet."""

    @property
    def size(self) -> int:
        """The largest number of requests that may wait."""
        return self._size

    @property
    def waiting(self) -> int:
        """The number of requests that wait at this moment."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the inputs of the requests that wait have."""
        return self._waiting_bytes

    @property
    def running(self) -> int:
        """The number of inferences that run at this moment."""
        return len(self._began)

    @property
    def longest_run(self) -> float:
        """For how many seconds the oldest running inference has run; 0 if none runs."""
        return time.perf_counter() - min(self._began.values()) if self._began else 0.0

    async def infer(
        self,
        inputs: Mapping[str, Any],
        deadline: float | None,
        times: Times,
        size: int = 0,
        submit: Callable[[object], Future[InferResult]] | None = None,
    ) -> InferResult:
        """Run one inference.

        `deadline` counts in seconds from now, waiting included; `size` is the inputs' size in bytes; `submit` begins
        the inference instead of the network. Raises `Busy` if too many requests or bytes wait, `DeadlineExceeded`, and
        the errors of the inference.
        """
        if deadline is not None and deadline <= 0:
            raise DeadlineExceeded(f"the deadline of the request to {self._name} had passed when it arrived")
        if self._taken >= self._slots:
            self._require_room(size)
        begin = submit or self._network.submit
        if deadline is None:
            return await self._run(inputs, size, times, begin)
        try:
            async with asyncio.timeout(deadline):
                return await self._run(inputs, size, times, begin)
        except TimeoutError as e:
            if isinstance(e, DeadlineExceeded):
                raise
            where = "waited in the queue" if not times.began else "ran"
            raise DeadlineExceeded(
                f"the deadline of the request to {self._name}, {deadline:.3g} s, passed while it {where}"
            ) from None

    def _require_room(self, size: int) -> None:
        """Raise `Busy` if a request with inputs of this many bytes cannot wait."""
        if self.waiting >= self._size:
            raise Busy(
                f"{self.waiting} requests to {self._name} wait, and {self.running} run; try again later, or raise "
                "`queue_size` in its configuration"
            )
        if self._size_bytes is not None and self._waiting_bytes + size > self._size_bytes:
            raise Busy(
                f"the inputs of {self.waiting} requests to {self._name} that wait have {self._waiting_bytes} bytes, "
                f"and this request {size}; at most {self._size_bytes} may wait; try again later, or raise `queue_mib` "
                "in its configuration"
            )

    async def _run(
        self, inputs: Mapping[str, Any], size: int, times: Times, submit: Callable[[object], Future[InferResult]]
    ) -> InferResult:
        await self._take_slot(size)
        self._count += 1
        key = self._count
        times.began = self._began[key] = time.perf_counter()
        try:
            future = submit(inputs)
        except BaseException:
            self._end(key)
            raise
        loop = asyncio.get_running_loop()
        result: asyncio.Future[InferResult] = loop.create_future()

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the device
                loop.call_soon_threadsafe(self._pass_on, key, future, result)

        future.add_done_callback(ended)
        try:
            return await result
        except asyncio.CancelledError:
            future.cancel()
            raise

    def _pass_on(self, key: int, future: Future[InferResult], result: asyncio.Future[InferResult]) -> None:
        """Free the slot of an inference, and give its result to the request, if it still waits: in one wake-up."""
        self._end(key)
        if result.done():
            return
        if future.cancelled():
            result.cancel()
        elif (error := future.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(future.result())

    def _end(self, key: int) -> None:
        """Free the slot of an inference that the device has ended; not before, even if its client stopped waiting."""
        del self._began[key]
        self._pass_on_slot()

    async def _take_slot(self, size: int) -> None:
        if self._taken < self._slots:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, size))
        self._waiting_bytes += size
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the slot, and cancelled before it continued
                self._pass_on_slot()
            elif (turn, size) in self._waiting:
                self._waiting.remove((turn, size))
                self._waiting_bytes -= size
            raise

    def _pass_on_slot(self) -> None:
        """Give a slot to the first that waits, so that no later request overtakes it."""
        while self._waiting:
            turn, size = self._waiting.popleft()
            self._waiting_bytes -= size
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1
