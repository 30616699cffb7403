"""How long an inference takes on each of several networks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from engine.errors import EngineError, InputError
from engine.lowering.tuning import Timing, median, time_in_turns
from engine.plugin_api import ExecutableNetwork, Port
from engine.properties import OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine.runtime.random_inputs import random_inputs
from engine.runtime.values import Value

_ROUNDS: Final = 5
_LONGEST_TURN: Final = 0.05
"""Seconds of one turn of one network, in which at least one inference runs."""
_HOPELESS: Final = 3.0


class Stopped(Exception):
    """The measurement ended before its time, since nobody needs it any more."""


def inputs_for(ports: Sequence[Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, Value] | None:
    """Random values for the inputs; `shapes` has those of earlier inferences. None if shapes are not known."""
    try:
        return random_inputs(ports, shapes=shapes)
    except InputError:
        return None


def measure(
    networks: Mapping[str, ExecutableNetwork],
    inputs: Mapping[str, Value],
    hint: str,
    seconds: float,
    check: Callable[[], None],
) -> tuple[dict[str, float] | None, dict[str, EngineError]]:
    """The milliseconds of an inference on each network, and the errors of those that failed.

    The networks take turns, so that disturbances affect all of them. For the hint LATENCY, the median of single
    inferences; for THROUGHPUT, the time of many, as many at once as keep the device busy, divided by their number. The
    times are None if `seconds` did not suffice. `check`, called between inferences, may raise `Stopped`.
    """
    turn = min(_LONGEST_TURN, seconds / (2 * _ROUNDS * max(1, len(networks))))
    deadline = time.perf_counter() + seconds
    trials: dict[str, Callable[[], int]] = {}
    errors: dict[str, EngineError] = {}
    for name, network in networks.items():
        try:
            trials[name] = _trial(network, inputs, hint, turn, check)
        except EngineError as e:
            errors[name] = e
    if not trials:
        return None, errors
    times = time_in_turns(trials, deadline, Timing(rounds=_ROUNDS, hopeless=_HOPELESS))
    return None if times is None else {name: spent / 1e6 for name, spent in times.items()}, errors


def _trial(
    network: ExecutableNetwork, inputs: Mapping[str, Value], hint: str, turn: float, check: Callable[[], None]
) -> Callable[[], int]:
    """A function that runs one turn and returns the nanoseconds of an inference. Runs an inference first."""
    check()
    network(inputs)  # which may compile for the shapes
    if hint != "THROUGHPUT":
        return lambda: _latency(network, inputs, turn, check)
    at_once = int(network.get_metric(OPTIMAL_NUMBER_OF_INFER_REQUESTS.name))
    return lambda: _time_of_many(network, inputs, 2 * at_once, turn, check)


def _latency(network: ExecutableNetwork, inputs: Mapping[str, Value], turn: float, check: Callable[[], None]) -> int:
    times: list[int] = []
    end = time.perf_counter() + turn
    while not times or time.perf_counter() < end:
        check()
        begun = time.perf_counter_ns()
        network(inputs)
        times.append(time.perf_counter_ns() - begun)
    return median(times)


def _time_of_many(
    network: ExecutableNetwork, inputs: Mapping[str, Value], at_once: int, turn: float, check: Callable[[], None]
) -> int:
    """The time of an inference when `at_once` are always under way or waiting."""
    begun = time.perf_counter_ns()
    futures = deque(network.submit(inputs) for _ in range(at_once))
    count = at_once
    try:
        while futures:
            check()
            futures.popleft().result()
            if time.perf_counter_ns() - begun < turn * 1e9:
                futures.append(network.submit(inputs))
                count += 1
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return (time.perf_counter_ns() - begun) // count
