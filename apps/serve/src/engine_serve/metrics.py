"""The server's metrics, for Prometheus. The route `/metrics` is KServe's; it shows the registry of the process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from functools import cached_property
from typing import Any, Final

from prometheus_client import Counter, Histogram

from engine_serve.model_statistics import ModelStatistics
from engine_serve.request_queue import Times

_MODEL: Final = ("model", "version")
_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

REQUESTS: Final = Counter("engine_requests", "Requests by outcome: ok, or the name of an error.", (*_MODEL, "end"))
REQUEST_SECONDS: Final = Histogram(
    "engine_request_seconds", "From a request's arrival at its model to its result.", _MODEL, buckets=_SECONDS
)
QUEUE_SECONDS: Final = Histogram("engine_queue_seconds", "How long requests waited.", _MODEL, buckets=_SECONDS)
INFER_SECONDS: Final = Histogram(
    "engine_infer_seconds",
    "Durations of inferences; with batches, until the batch ended.",
    _MODEL,
    buckets=_SECONDS,
)
ROWS: Final = Histogram(
    "engine_request_rows", "The first dimension of requests.", _MODEL, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
TOKENS: Final = Counter("engine_tokens", "Tokens that were generated.", _MODEL)
PROMPT_TOKENS: Final = Counter("engine_prompt_tokens", "Tokens of prompts that have been computed.", _MODEL)
PREFIX_TOKENS: Final = Counter(
    "engine_prefix_tokens", "Of these, tokens whose keys and values were kept from earlier sequences.", _MODEL
)
PREFIX_HITS: Final = Counter("engine_prefix_hits", "Prompts with such tokens.", _MODEL)


class ModelSeries:
    """The metrics of the requests to one version of a model. Each is looked up once, when it is first needed."""

    def __init__(self, name: str, version: str) -> None:
        self._labels = (name, version)
        self._ends: dict[str, Any] = {}
        self.statistics = ModelStatistics()

    def measure(self, end: str, times: Times) -> None:
        """Record a request that ended: `end` is "ok", or the name of an error."""
        if end not in self._ends:
            self._ends[end] = REQUESTS.labels(*self._labels, end)
        self._ends[end].inc()
        self.statistics.add(end == "ok", times)
        self._request_seconds.observe(times.ended - times.arrived)
        if times.began:
            self._queue_seconds.observe(times.began - times.arrived)
            self._infer_seconds.observe(times.ended - times.began)

    @cached_property
    def rows(self) -> Any:
        """The histogram of the first dimensions."""
        return ROWS.labels(*self._labels)

    @cached_property
    def _request_seconds(self) -> Any:
        return REQUEST_SECONDS.labels(*self._labels)

    @cached_property
    def _queue_seconds(self) -> Any:
        return QUEUE_SECONDS.labels(*self._labels)

    @cached_property
    def _infer_seconds(self) -> Any:
        return INFER_SECONDS.labels(*self._labels)


class Tally:
    """Counts the requests to all models: answered, abandoned by their clients, and cut off after the grace period.

    Used by one event loop.
    """

    answered = 0
    gone = 0
    cut_off = 0
    is_over: bool = False
    """Whether the grace period is over."""

    def end_early(self) -> None:
        """Count a cancelled request: its client has disconnected, or the grace period is over."""
        if self.is_over:
            self.cut_off += 1
        else:
            self.gone += 1


class DeviceClock:
    """For how long each device had at least one inference, in seconds. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: defaultdict[str, int] = defaultdict(int)
        self._since: dict[str, float] = {}
        self._busy: defaultdict[str, float] = defaultdict(float)

    def begin(self, device: str) -> None:
        """Count an inference that begins on the device."""
        with self._lock:
            if not self._running[device]:
                self._since[device] = time.perf_counter()
            self._running[device] += 1

    def end(self, device: str) -> None:
        """Record that an inference on `device` ended; thread-safe."""
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
