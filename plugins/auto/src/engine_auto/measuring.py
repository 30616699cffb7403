"""How long an inference takes on each of several networks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Final

from engine.errors import Cancelled, EngineError, InputError
from engine.lowering.tuning import Timing, median, time_in_turns
from engine.plugin_api import ExecutableNetwork, Port
from engine.properties import OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine.runtime.async_request import AsyncInferRequest
from engine.runtime.deadlines import deadline_timer
from engine.runtime.random_inputs import random_inputs
from engine.runtime.submission import InferFuture
from engine.runtime.values import Value

_ROUNDS: Final = 5
_MAX_TURN_SECONDS: Final = 0.05
"""Seconds of one turn of one network; at least one inference runs in it."""
_HOPELESS: Final = 3.0
_AGAIN: Final = 0.1
"""Seconds after which an inference that has not ended is cancelled again."""


class Stopped(Exception):
    """The measurement ended early, since it is no longer needed."""


def inputs_for(ports: Sequence[Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, Value] | None:
    """Random values for the inputs; `shapes` has the shapes of earlier inferences. None if shapes are not known."""
    try:
        return random_inputs(ports, shapes=shapes)
    except InputError:
        return None


class Trials:
    """Measures how long an inference takes on each network. `run` belongs to one thread, `stop` to any.

    Args:
        hint: LATENCY measures the median of single inferences; THROUGHPUT the time of many, as many at once as keep the
            device busy, divided by their number.
        seconds: the limit of `run`, which checks it only between inferences; a waiting caller calls `stop` then.
        check: called between inferences; may raise `Stopped`.

    Attributes:
        begun: the network whose first inference has begun but not ended; for some networks it compiles. "" if none has.
    """

    def __init__(
        self,
        networks: Mapping[str, ExecutableNetwork],
        inputs: Mapping[str, Value],
        hint: str,
        seconds: float,
        check: Callable[[], None],
    ) -> None:
        self.begun = ""
        self._networks, self._inputs, self._hint, self._seconds, self._check = networks, inputs, hint, seconds, check
        self._turn = min(_MAX_TURN_SECONDS, seconds / (2 * _ROUNDS * max(1, len(networks))))
        self._running: AsyncInferRequest | InferFuture | None = None
        self._is_stopped = False

    def run(self) -> tuple[dict[str, float] | None, dict[str, EngineError]]:
        """The milliseconds of an inference on each network, and the errors of those that failed.

        The networks take turns, so that disturbances affect all of them. The times are None if the seconds did not
        suffice. Raises `Stopped` after `stop`.
        """
        deadline = time.perf_counter() + self._seconds
        trials: dict[str, Callable[[], int]] = {}
        errors: dict[str, EngineError] = {}
        try:
            for name, network in self._networks.items():
                if time.perf_counter() > deadline:
                    return None, errors
                self.begun = name
                try:
                    trials[name] = self._trial(network)
                except EngineError as e:
                    self._check_stopped()
                    errors[name] = e
            self.begun = ""
            if not trials:
                return None, errors
            times = time_in_turns(trials, deadline, Timing(rounds=_ROUNDS, hopeless=_HOPELESS))
        except (Cancelled, CancelledError):
            self._check_stopped()
            raise
        finally:
            self._running = None
        return None if times is None else {name: spent / 1e6 for name, spent in times.items()}, errors

    def stop(self) -> None:
        """Cancel the inference that runs, and one that was about to begin."""
        self._is_stopped = True
        running = self._running
        if running is not None:
            running.cancel()
            deadline_timer.call_after(_AGAIN, self.stop)  # an inference that begins now has not noticed

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise Stopped
        self._check()

    def _trial(self, network: ExecutableNetwork) -> Callable[[], int]:
        """A function that runs one turn and returns the nanoseconds of an inference. Runs an inference first."""
        request = network.create_infer_request()
        self._infer(request)
        if self._hint != "THROUGHPUT":
            return lambda: self._latency(request)
        at_once = int(network.get_metric(OPTIMAL_NUMBER_OF_INFER_REQUESTS.name))
        return lambda: self._time_of_many(network, 2 * at_once)

    def _infer(self, request: AsyncInferRequest) -> int:
        """Run an inference from the initial state, and return its nanoseconds."""
        self._running = request
        self._check_stopped()
        begun = time.perf_counter_ns()
        request.infer(self._inputs)
        spent = time.perf_counter_ns() - begun
        request.reset_state()
        return spent

    def _latency(self, request: AsyncInferRequest) -> int:
        times: list[int] = []
        end = time.perf_counter() + self._turn
        while not times or time.perf_counter() < end:
            times.append(self._infer(request))
        return median(times)

    def _time_of_many(self, network: ExecutableNetwork, at_once: int) -> int:
        """The time of an inference while `at_once` are always running or waiting."""
        begun = time.perf_counter_ns()
        futures = deque(network.submit(self._inputs) for _ in range(at_once))
        count = at_once
        try:
            while futures:
                self._running = futures[0]
                self._check_stopped()
                futures[0].result()
                futures.popleft()
                if time.perf_counter_ns() - begun < self._turn * 1e9:
                    futures.append(network.submit(self._inputs))
                    count += 1
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return (time.perf_counter_ns() - begun) // count
