"""Measuring: every inference is counted once, several are in flight, and nothing is left running."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from engine.errors import DeviceError, InferError, InputError
from engine.runtime.benchmark import measure

INPUTS = {"x": np.ones((1, 3), np.float32)}


def counting(counts: dict[str, int]) -> Any:
    def hook(request: Any) -> None:
        counts["inferences"] = counts.get("inferences", 0) + 1

    return hook


@pytest.mark.parametrize("requests", [0, 1, 3])
def test_a_count_is_exact(make_network: Any, requests: int) -> None:
    counts: dict[str, int] = {}
    network = make_network(infer_postprocess=counting(counts))
    found = measure(network, INPUTS, requests=requests, count=10, warm_up=2)
    assert (found.requests, found.count) == (requests, 10)
    assert counts["inferences"] == 10 + 2 * max(requests, 1)
    assert (found.latencies_ns > 0).all()
    assert found.latency(0) <= found.latency(50) <= found.latency(100)
    assert found.throughput == pytest.approx(10 / found.seconds)
    assert found.latencies_ns.max() / 1e9 <= found.seconds


@pytest.mark.parametrize("requests", [0, 2])
def test_a_time_limit_ends_it_after_one_inference_at_least(make_network: Any, requests: int) -> None:
    assert measure(make_network(), INPUTS, requests=requests, seconds=0, warm_up=0).count == 1
    assert measure(make_network(), INPUTS, requests=requests, seconds=0.02, count=3).count <= 3


def test_requests_are_in_flight_together(make_network: Any) -> None:
    together = threading.Barrier(3)
    network = make_network({"NUM_STREAMS": 3}, start_pipeline=lambda request: together.wait(60))
    assert measure(network, INPUTS, requests=3, count=6, warm_up=0).count == 6


@pytest.mark.parametrize("requests", [0, 2])
def test_a_failing_inference_is_raised_and_nothing_runs_on(make_network: Any, requests: int) -> None:
    counts: dict[str, int] = {}

    def fail_on_the_third(request: Any) -> None:
        counting(counts)(request)
        if counts["inferences"] >= 3:
            raise RuntimeError("the device is on fire")

    network = make_network(start_pipeline=fail_on_the_third)
    with pytest.raises(DeviceError, match="on fire"):
        measure(network, INPUTS, requests=requests, count=100, warm_up=0)
    assert counts["inferences"] <= 3 + requests


@pytest.mark.parametrize("requests", [0, 2])
def test_wrong_inputs_are_raised(make_network: Any, requests: int) -> None:
    with pytest.raises(InputError, match="inputs: x"):
        measure(make_network(), {"z": 1}, requests=requests, count=1, warm_up=0)


@pytest.mark.parametrize(
    "limits", [{}, {"count": 0}, {"seconds": -1}, {"count": 1, "warm_up": -1}, {"count": 1, "requests": -1}]
)
def test_limits_that_make_no_sense_are_refused(make_network: Any, limits: dict[str, Any]) -> None:
    with pytest.raises(InferError, match=r"measuring has no end|count must be 1 or more"):
        measure(make_network(), INPUTS, **limits)
