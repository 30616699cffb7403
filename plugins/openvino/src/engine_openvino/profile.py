"""The times that OpenVINO tells of its own nodes, as times of the nodes of the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from engine.plugin_api import SyncInferRequest


def record(request: SyncInferRequest, told: Iterable[Any], operators: Mapping[str, str], begun_ns: int) -> None:
    """Record the nodes that OpenVINO ran, one after the other from `begun_ns` on, since it tells durations only.

    `operators` are the model's, by name. A node that OpenVINO has made, such as a change of the memory's layout, counts
    to the node of the model that runs next, or else last. If it names no node of the model, all are one record.
    """
    end = time.perf_counter_ns()
    runs: list[tuple[str, str, int]] = []
    pending = 0
    for node in told:
        if node.status.name != "EXECUTED":
            continue
        pending += round(node.real_time.total_seconds() * 1e9)
        if node.node_name in operators:
            runs.append((node.node_name, f"{node.node_type} {node.exec_type}", pending))
            pending = 0
    if not runs:
        request.record_subgraph(list(operators), begun_ns, end)
        return
    name, kernel, duration = runs[-1]
    start = begun_ns
    runs[-1] = name, kernel, duration + pending
    for name, kernel, duration in runs:
        stop = min(start + duration, end)
        request.record_node(name, operators[name], "native", start, stop, kernel=kernel)
        start = stop
