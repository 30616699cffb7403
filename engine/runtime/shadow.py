"""Shadow mode: a sample of a live network's inferences is repeated on another network, and the results are compared."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from engine.errors import InferError, InputError
from engine.runtime.comparison import Comparison, compare_results
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.runtime.port import Port
from engine.runtime.result import InferResult
from engine.runtime.signature import Signature
from engine.runtime.values import Value
from engine.startup import dataclass
from engine.threads import Signal

_log = logging.getLogger("engine.runtime")
_QUEUE: Final = 4


class ShadowNetwork(Protocol):
    """A network as shadow mode sees it."""

    signature: Signature

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the network, in order."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of the network, in order."""

    def __call__(self, inputs: object = None) -> InferResult:
        """Run one inference."""


@dataclass(frozen=True, slots=True, eq=False)
class ShadowDifference:
    """An inference whose results differ: copies of its inputs, both results, and how they compare.

    Attributes:
        inputs, live, other: values by name; `live` are the results that the application got.
        comparisons: of every output.
    """

    inputs: Mapping[str, Any]
    live: Mapping[str, Any]
    other: Mapping[str, Any]
    comparisons: Sequence[Comparison]


@dataclass(slots=True)
class ShadowStatistics:
    """The counts of a shadow since it began.

    Attributes:
        inferences: the inferences that the live network finished.
        sampled: the inferences that were chosen.
        dropped: chosen ones that were omitted, since the queue was full.
        skipped: chosen ones that cannot be repeated: with tensors on the device, or output tensors of the user.
        compared: inferences that the other network repeated.
        different: compared ones with an output beyond the tolerance.
        failed: inferences that the other network did not finish, or whose comparison or callback raised.
        max_absolute: the largest absolute difference of each output; NaN if any was.
        last_error: the error of the last failure.
    """

    inferences: int = 0
    sampled: int = 0
    dropped: int = 0
    skipped: int = 0
    compared: int = 0
    different: int = 0
    failed: int = 0
    max_absolute: dict[str, float] = field(default_factory=dict)
    last_error: Exception | None = None


OnDifference: TypeAlias = Callable[[ShadowDifference], object]


class Shadow(Participant):
    """Compares a sample of a live network's inferences with another network, in a thread of its own.

        with network.shadow(reference, sample=0.01, on_difference=print) as shadow:
            serve(network)
        shadow.statistics

    All requests of the live network take part, including those that exist already. The inputs and outputs of a chosen
    inference are copied; any other costs only a random number. If the queue is full, a chosen one is dropped instead.
    Nothing that the other network or the callback does reaches the live one; but both may compute on the same cores, so
    a small sample costs less. `close`, or leaving the block, compares what is waiting, and ends.

    Args:
        live, other: networks with the same inputs and outputs, without variables.
        sample: the share of inferences that are chosen, from 0 to 1.
        rtol, atol: as for `compare_results`; the results of `other` are the expected ones.
        on_difference: called in the shadow's thread for each inference with a difference.
        queue: how many inferences may wait.
        seed: of the choice; None for another one each time.

    Raises `InputError` if the networks do not fit together, and `InferError` if the live one has a shadow already.
    """

    def __init__(
        self,
        live: ShadowNetwork,
        other: ShadowNetwork,
        *,
        sample: float = 0.01,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        on_difference: OnDifference | None = None,
        queue: int = _QUEUE,
        seed: int | None = None,
    ) -> None:
        import random  # 2 ms, which other processes need not pay

        _check(live, other, sample, queue)
        self._live, self._other = live.signature, other
        self._sample, self._rtol, self._atol = sample, rtol, atol
        self._on_difference, self._limit = on_difference, queue
        self._random = random.Random(seed).random
        self._found = ShadowStatistics()
        self._waiting: deque[tuple[dict[str, Any], dict[str, Any]]] = deque()
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        self._is_closed = self._is_busy_now = False
        self._observer = self._observe  # one bound method, so that it can be recognised
        with _attaching:
            if self._live.observer is not None:
                raise InferError(f"{self._live.network} has a shadow already; close it first")
            self._thread = threading.Thread(target=self._work, name=f"shadow of {self._live.network}", daemon=True)
            self._thread.start()
            lifecycle.track(self)
            self._live.observer = self._observer

    def __enter__(self) -> Shadow:
        """The shadow, which has begun already."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    @property
    def statistics(self) -> ShadowStatistics:
        """The statistics so far, as a copy that does not change. Thread-safe."""
        with self._lock:
            found = self._found
            return ShadowStatistics(
                found.inferences, found.sampled, found.dropped, found.skipped, found.compared, found.different,
                found.failed, dict(found.max_absolute), found.last_error,
            )  # fmt: skip

    def close(self, timeout: float | None = None) -> bool:
        """Take no more inferences, compare those that wait, and end; whether it did within `timeout` (s).

        Inferences left after the timeout are dropped. Can be called again.
        """
        self._detach()
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        if is_over := not self._thread.is_alive():
            return is_over
        with self._lock:
            self._found.dropped += len(self._waiting)
            self._waiting.clear()
        return False

    # -- in the threads of the live network -----------------------------------------------------------------

    def _observe(self, inputs: Sequence[Value], outputs: Sequence[Value], is_plain: bool) -> None:
        """Sample a finished inference. Never raises, and never waits for the shadow's thread."""
        try:
            if getattr(_own, "is_repeating", False):
                return
            is_chosen = self._random() < self._sample
            with self._lock:
                found = self._found
                found.inferences += 1
                if not is_chosen or self._is_closed:
                    return
                found.sampled += 1
                if len(self._waiting) >= self._limit:
                    found.dropped += 1
                    return
            copies = self._copies(inputs, outputs) if is_plain else None
            with self._lock:
                if copies is None:
                    found.skipped += 1
                elif self._is_closed or len(self._waiting) >= self._limit:
                    found.dropped += 1
                else:
                    self._waiting.append(copies)
                    self._changed.notify_all()
        except Exception as e:  # such as no memory for the copies: the live inference continues
            self._failed(e)

    def _copies(
        self, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        ports = (self._live.inputs, self._live.outputs)
        found = []
        for each, values in zip(ports, (inputs, outputs), strict=True):
            copied = {port.name: _copied(value) for port, value in zip(each, values, strict=True)}
            if any(value is _ON_DEVICE for value in copied.values()):
                return None
            found.append(copied)
        return found[0], found[1]

    # -- in the shadow's thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        _own.is_repeating = True
        while True:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            with self._lock:
                if not self._waiting:
                    return
                inputs, outputs = self._waiting.popleft()
                self._is_busy_now = True
            try:
                self._repeat(inputs, outputs)
            except Exception as e:  # of the other network, the comparison or the callback
                self._failed(e)
            finally:
                self._is_busy_now = False

    def _repeat(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        expected = dict(self._other(inputs))
        comparisons = compare_results(outputs, expected, rtol=self._rtol, atol=self._atol)
        is_close = all(each.is_close for each in comparisons)
        with self._lock:
            self._found.compared += 1
            self._found.different += not is_close
            for each in comparisons:
                former = self._found.max_absolute.get(each.name, 0.0)
                # Not Python's `max`, which may lose a NaN.
                self._found.max_absolute[each.name] = float(np.maximum(former, each.max_absolute))
        if not is_close and self._on_difference is not None:
            self._on_difference(ShadowDifference(inputs, outputs, expected, comparisons))

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._found.failed += 1
            self._found.last_error = error
            is_first = self._found.failed == 1
        if is_first:
            _log.warning(
                "the shadow of %s failed; further failures are counted only", self._live.network, exc_info=error
            )

    def _detach(self) -> None:
        with _attaching:
            if self._live.observer is self._observer:
                self._live.observer = None

    # -- fork and exit --------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """In a child, where its thread does not run, the network has no shadow."""
        self._lock = threading.RLock()
        self._changed = Signal(self._lock)
        self._is_closed, self._is_busy_now = True, False
        self._waiting.clear()
        self._live.observer = None

    def _begin_exit(self) -> None:
        self._live.observer = None
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _is_busy(self) -> bool:
        return self._is_busy_now


_attaching = ForkSafeLock()
_own = threading.local()
"""`is_repeating` in the threads of shadows: what they compute is not sampled, even by another shadow."""
_ON_DEVICE: Final = object()


def _copied(value: Value) -> Any:
    """A copy of a value on the host; `_ON_DEVICE` for one that is not."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        copies = [_copied(each) for each in value]
        return _ON_DEVICE if any(each is _ON_DEVICE for each in copies) else copies
    if isinstance(value, dict):
        return dict(value)
    return None if value is None else _ON_DEVICE


def _check(live: ShadowNetwork, other: ShadowNetwork, sample: float, queue: int) -> None:
    if not 0 <= sample <= 1 or queue < 1:
        raise InputError(f"sample must be from 0 to 1, and queue 1 or more; got sample={sample}, queue={queue}")
    for network in (live, other):
        if network.signature.states:
            raise InputError(f"{network.signature.network} has variables: an inference depends on those before it")
    for what, own, others in (("input", live.inputs, other.inputs), ("output", live.outputs, other.outputs)):
        left, right = ([(port.name, str(port.type)) for port in ports] for ports in (own, others))
        if [name for name, _ in left] != [name for name, _ in right]:
            raise InputError(
                f"{other.signature.network} has the {what}s {', '.join(name for name, _ in right) or 'none'}; expected "
                f"the same as {live.signature.network}: {', '.join(name for name, _ in left) or 'none'}"
            )
