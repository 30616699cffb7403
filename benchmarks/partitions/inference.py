"""The overhead of HETERO: a chain of subgraphs that alternate between two registrations of CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from engine_cpu import CpuPlugin

from engine import Core, ops
from engine.ir import Model, Node, Parameter, f32

DEVICES = ("CPU", "CPU2")
SHAPE = [1, 256]
CALLS = 200


def measure_inference(rounds: int) -> list[dict[str, Any]]:
    """Measure chains of few and of many subgraphs."""
    return [_measure(subgraphs, rounds) for subgraphs in (2, 8, 32)]


def _chain(subgraphs: int) -> Model:
    """A chain whose subgraphs each have a Relu and a Sigmoid."""
    x = Parameter(f32, SHAPE, "x")
    node: Node = x
    for number in range(subgraphs):
        for build in (ops.Relu, ops.Sigmoid):
            node = build(node)
            node.rt_info["affinity"] = DEVICES[number % 2]
    return Model([node], [x])


def _measure(subgraphs: int, rounds: int) -> dict[str, Any]:
    core = Core()
    core.register_plugin(DEVICES[1], CpuPlugin)
    network = core.compile_model(_chain(subgraphs), f"HETERO:{','.join(DEVICES)}")
    assert network.get_metric("SUBGRAPH_COUNT") == subgraphs
    inputs = {"x": np.linspace(-3, 3, SHAPE[1], dtype=np.float32).reshape(SHAPE)}
    request, background = network.create_infer_request(), network.create_infer_request()
    part_requests = [part.create_infer_request() for part in network.dataflow.networks]
    for part in part_requests:
        part.infer([inputs["x"]])  # binds the tensor once

    def run_parts() -> None:
        for part in part_requests:
            part.infer()

    def run_in_background() -> None:
        background.start_async(inputs)
        background.wait()

    seconds: dict[str, list[float]] = {"parts": [], "sync": [], "async": []}
    calls: dict[str, Callable[[], object]] = {
        "parts": run_parts, "sync": lambda: request.infer(inputs), "async": run_in_background
    }  # fmt: skip
    for _ in range(max(3 * rounds, 9)):
        for name, call in calls.items():  # alternating, so that noise affects all of them
            seconds[name].append(_seconds_a_call(call))
    parts, sync, in_background = (statistics.median(seconds[name]) * 1e6 for name in calls)
    return {
        "subgraphs": subgraphs,
        "parts_us": parts,
        "sync_us": sync,
        "async_us": in_background,
        "sync_overhead_us_a_subgraph": (sync - parts) / subgraphs,
        "async_overhead_us_a_subgraph": (in_background - parts) / subgraphs,
    }


def _seconds_a_call(call: Callable[[], object]) -> float:
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS
