"""The times that OpenVINO tells of its own nodes, as times of the nodes of the model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from engine.ir import Node
from engine.plugin_api import SyncInferRequest


def record(request: SyncInferRequest, told: Iterable[Any], nodes: Mapping[str, Node], begun_ns: int) -> None:
    """Record the nodes that OpenVINO ran, one after the other from `begun_ns` on, since it tells durations only.

    `nodes` are the model's, by the names that OpenVINO has for them. A node that OpenVINO has made, such as a change of
    the memory's layout, counts to the node of the model that runs next, or else last. If OpenVINO names no node of the
    model, all are one record.
    """
    end = time.perf_counter_ns()
    runs: list[tuple[Node, str, int]] = []
    pending = 0
    for node in told:
        if node.status.name != "EXECUTED":
            continue
        pending += round(node.real_time.total_seconds() * 1e9)
        if node.node_name in nodes:
            runs.append((nodes[node.node_name], f"{node.node_type} {node.exec_type}", pending))
            pending = 0
    if not runs:
        names = dict.fromkeys(node.friendly_name for node in nodes.values())
        request.record_subgraph(list(names), begun_ns, end)
        return
    last, kernel, duration = runs[-1]
    runs[-1] = last, kernel, duration + pending
    start = begun_ns
    for ran, kernel, duration in runs:
        stop = min(start + duration, end)
        request.record_node(ran.friendly_name, ran.op_type, "native", start, stop, kernel=kernel)
        start = stop
