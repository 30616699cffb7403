"""Runs a network with profiling, and keeps the profile of each inference."""

from __future__ import annotations

from typing import Any

from engine.errors import InferError
from engine.runtime.async_request import AsyncInferRequest
from engine.runtime.queue import AsyncInferQueue, QueueNetwork
from engine.runtime.result import ProfilingInfo
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """The profiles of inferences, in order of completion; `requests` were in flight, 0: one after the other."""

    requests: int
    profiles: tuple[ProfilingInfo, ...]


def profile_network(
    network: QueueNetwork, inputs: Any, *, requests: int = 0, count: int = 10, warm_up: int = 1
) -> ProfiledRun:
    """Run `count` inferences with the same `inputs` after `warm_up` others of each request, and return their profiles.

    With `requests` of 0 they run one after the other in this thread, otherwise that many are in flight. Raises
    `InferError` if the network was compiled without PERF_COUNT, and the errors of inferences.
    """
    if requests < 0 or count < 1 or warm_up < 0:
        raise InferError(
            f"count must be 1 or more, and no number negative; got requests={requests}, count={count}, "
            f"warm_up={warm_up}"
        )
    found: list[ProfilingInfo] = []
    if not requests:
        request = network.create_infer_request()
        for number in range(warm_up + count):
            request.infer(inputs)
            if number >= warm_up:
                found.append(request.profiling_info)
    else:
        _run_in_flight(network, inputs, requests, warm_up, count, found)
    if not found[0].stages:
        raise InferError("the network records nothing; compile it with PERF_COUNT")
    return ProfiledRun(requests, tuple(found))


def _run_in_flight(
    network: QueueNetwork, inputs: Any, requests: int, warm_up: int, count: int, found: list[ProfilingInfo]
) -> None:
    def keep(request: AsyncInferRequest, is_kept: bool) -> None:
        if is_kept:
            found.append(request.profiling_info)

    with AsyncInferQueue(network, requests, callback=keep) as queue:
        for number in range(requests * warm_up + count):
            if number == requests * warm_up:
                queue.wait_all()
            queue.start_async(inputs, number >= requests * warm_up)
        queue.wait_all()
