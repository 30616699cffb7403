"""What the server measures, for Prometheus. The route `/metrics` is KServe's; it shows the registry of the process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from engine.serving.repository import Repository

_MODEL: Final = ("model", "version")
_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

REQUESTS: Final = Counter("engine_requests", "Requests by how they ended: ok, or the name of an error.", (*_MODEL, "end"))
REQUEST_SECONDS: Final = Histogram(
    "engine_request_seconds", "From a request's arrival at its model to its result.", _MODEL, buckets=_SECONDS
)
QUEUE_SECONDS: Final = Histogram("engine_queue_seconds", "How long requests waited.", _MODEL, buckets=_SECONDS)
INFER_SECONDS: Final = Histogram(
    "engine_infer_seconds", "How long inferences took; with batches, until the batch was done.", _MODEL, buckets=_SECONDS
)
ROWS: Final = Histogram(
    "engine_request_rows", "The first dimension of requests.", _MODEL, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
TOKENS: Final = Counter("engine_tokens", "Tokens that were generated.", _MODEL)


class DeviceClock:
    """For how long each device had at least one inference, in seconds. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: defaultdict[str, int] = defaultdict(int)
        self._since: dict[str, float] = {}
        self._busy: defaultdict[str, float] = defaultdict(float)

    def begin(self, device: str) -> None:
        """An inference begins."""
        with self._lock:
            if not self._running[device]:
                self._since[device] = time.perf_counter()
            self._running[device] += 1

    def end(self, device: str) -> None:
        """An inference has ended."""
        with self._lock:
            self._running[device] -= 1
            if not self._running[device]:
                self._busy[device] += time.perf_counter() - self._since.pop(device)

    def seconds(self) -> dict[str, float]:
        """The seconds of each device so far."""
        now = time.perf_counter()
        with self._lock:
            return {
                device: self._busy[device] + (now - self._since[device] if device in self._since else 0.0)
                for device in self._running
            }


class ServerCollector(Collector):
    """Reads what is known only when Prometheus asks: queues, readiness, batches, devices."""

    def __init__(self, repository: Repository, clock: DeviceClock) -> None:
        self._repository, self._clock = repository, clock
        REGISTRY.register(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry would otherwise collect to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
        waiting = GaugeMetricFamily("engine_queue_length", "Requests that wait.", labels=_MODEL)
        running = GaugeMetricFamily("engine_running_inferences", "Inferences that run.", labels=_MODEL)
        ready = GaugeMetricFamily("engine_model_ready", "1 if a version can be used, else 0.", labels=_MODEL)
        batches = HistogramMetricFamily("engine_batch_size", "How many requests batches had.", labels=_MODEL)
        for name, version, state in self._repository.states():
            labels = (name, version)
            ready.add_metric(labels, float(state.model is not None))
            if state.model is None:
                continue
            waiting.add_metric(labels, state.model.queue.waiting)
            running.add_metric(labels, state.model.queue.running)
            if (sizes := state.model.batch_sizes()) is not None:
                batches.add_metric(labels, *_buckets(sizes))
        yield from (waiting, running, ready, batches)
        busy = CounterMetricFamily("engine_device_busy_seconds", "Seconds with an inference.", labels=("device",))
        for device, seconds in self._clock.seconds().items():
            busy.add_metric((device,), seconds)
        yield busy


def _buckets(sizes: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts of batches, by powers of two, and the sum of their sizes."""
    bounds = [1]
    while bounds[-1] < max(sizes, default=1):
        bounds.append(2 * bounds[-1])
    counts = [(str(float(bound)), float(sum(n for size, n in sizes.items() if size <= bound))) for bound in bounds]
    counts.append(("+Inf", float(sum(sizes.values()))))
    return counts, float(sum(size * n for size, n in sizes.items()))
