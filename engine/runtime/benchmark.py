"""Measures the latency and throughput of a network's inferences, one after the other or several at once."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InferError
from engine.runtime.async_request import AsyncInferRequest
from engine.runtime.queue import QueueNetwork
from engine.startup import dataclass
from engine.threads import Signal


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The result of `measure`.

    Attributes:
        requests: how many inferences were in flight at once; 0 if they ran in the calling thread.
        seconds: from the first start to the last end.
        latencies_ns: of each inference, in order of completion: from its start to its result, int64.
    """

    requests: int
    seconds: float
    latencies_ns: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of inferences that were measured."""
        return len(self.latencies_ns)

    @property
    def throughput(self) -> float:
        """The inferences per second, of all requests together."""
        return self.count / self.seconds

    def latency(self, percent: float) -> float:
        """The `percent`-th percentile of the latencies in milliseconds; 50 is the median."""
        return float(np.percentile(self.latencies_ns, percent)) / 1e6


def measure(
    network: QueueNetwork,
    inputs: object,
    *,
    requests: int = 0,
    seconds: float | None = None,
    count: int | None = None,
    warm_up: int = 1,
) -> Measurement:
    """Run inferences until `seconds` have passed or `count` have been started, whichever comes first; see `Meter`.

    Every inference uses the same `inputs`. With `requests` of 0 they run one after the other in this thread;
    otherwise that many are kept in flight, each started by the callback of the one before it. Before the clock starts,
    each request runs `warm_up` inferences. At least one inference is measured. Raises `InferError` if no limit
    is given, and the errors of inferences.
    """
    if seconds is None and count is None:
        raise InferError("measuring has no end; pass seconds, count, or both")
    if requests < 0 or warm_up < 0 or (seconds is not None and seconds < 0) or (count is not None and count < 1):
        raise InferError(
            f"count must be 1 or more, and no number negative; got requests={requests}, "
            f"seconds={seconds}, count={count}, warm_up={warm_up}"
        )
    return Meter(network, inputs, requests=requests, warm_up=warm_up).measure(seconds=seconds, count=count)


class Meter:
    """Measures a network any number of times with the same requests and inputs, so that blocks can alternate."""

    def __init__(self, network: QueueNetwork, inputs: object, *, requests: int = 0, warm_up: int = 1) -> None:
        """Create the requests, and run `warm_up` inferences of each. Raises the errors of inferences."""
        self._inputs, self._in_flight = inputs, requests
        self._requests = [network.create_infer_request() for _ in range(max(requests, 1))]
        for request in self._requests:
            for _ in range(warm_up):
                request.infer(inputs)

    def measure(self, *, seconds: float | None = None, count: int | None = None) -> Measurement:
        """Run inferences until `seconds` have passed or `count` have been started, but at least one."""
        limit = _Limit(seconds, count)
        if self._in_flight:
            return _Relay(self._requests, self._inputs, limit).run()
        return _measure_one_by_one(self._requests[0], self._inputs, limit)


def wait_for_choice(network: QueueNetwork, seconds: float = 600.0) -> bool:
    """Wait until a network that chooses its device, as AUTO's does, has chosen it; False after `seconds`.

    Call it after an inference: shapes that the model leaves open are measured with the shapes of the first one.
    """
    end = time.monotonic() + seconds
    if "CHOICE_IS_FINAL" not in network.get_metric("SUPPORTED_METRICS"):
        return True
    while not network.get_metric("CHOICE_IS_FINAL"):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@dataclass(frozen=True, slots=True)
class _Limit:
    seconds: float | None
    count: int | None

    def has_passed(self, started: int, begin_ns: int) -> bool:
        """Whether no more inferences should be started once `started` of them have been."""
        if self.count is not None and started >= self.count:
            return True
        return started > 0 and self.seconds is not None and time.perf_counter_ns() - begin_ns >= self.seconds * 1e9


def _measure_one_by_one(request: AsyncInferRequest, inputs: object, limit: _Limit) -> Measurement:
    latencies: list[int] = []
    begin = end = time.perf_counter_ns()
    while not limit.has_passed(len(latencies), begin):
        start = time.perf_counter_ns()
        request.infer(inputs)
        end = time.perf_counter_ns()
        latencies.append(end - start)
    return Measurement(0, (end - begin) / 1e9, np.array(latencies, np.int64))


class _Relay:
    """Keeps every request in flight: the callback of an inference starts the next one."""

    def __init__(self, requests: list[AsyncInferRequest], inputs: object, limit: _Limit) -> None:
        self._requests = requests
        self._inputs = inputs
        self._limit = limit
        self._starts: dict[AsyncInferRequest, int] = {}
        self._latencies: list[int] = []
        self._error: BaseException | None = None
        self._begin = self._end = 0
        self._started = 0
        self._running = 0
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)

    def run(self) -> Measurement:
        """Run until the limit has passed and nothing is in flight; raise the first error."""
        self._begin = time.perf_counter_ns()
        try:
            for request in self._requests:
                request.set_callback(self._finished)
                self._start_next(request)
            self._changed.wait_for(lambda: not self._running)
        except BaseException as e:  # such as Ctrl-C, after which nothing must be left running
            self._stop(e)
            raise
        if self._error is not None:
            raise self._error
        seconds = (self._end - self._begin) / 1e9
        return Measurement(len(self._requests), seconds, np.array(self._latencies, np.int64))

    def _start_next(self, request: AsyncInferRequest) -> None:
        with self._lock:
            if self._error is not None or self._limit.has_passed(self._started, self._begin):
                return
            self._started += 1
            self._running += 1
        self._starts[request] = time.perf_counter_ns()
        try:
            request.start_async(self._inputs)
        except Exception as e:  # nothing runs; after Ctrl-C it might
            self._ended(e)

    def _finished(self, request: AsyncInferRequest, error: EngineError | None) -> None:
        self._end = time.perf_counter_ns()
        if error is None:
            self._latencies.append(self._end - self._starts[request])
            self._start_next(request)
        self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._running -= 1
            self._changed.notify_all()

    def _stop(self, error: BaseException) -> None:
        """Wait until nothing runs; after an interrupt, `_running` may count an inference that has not begun."""
        with self._lock:
            self._error = self._error or error
        for request in self._requests:
            starts = -1
            while starts != request.starts:  # a callback may have started it again meanwhile
                starts = request.starts
                request.cancel()
                with suppress(EngineError):
                    request.wait()
