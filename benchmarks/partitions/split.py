"""Measures the time, quality and memory of partitions."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engine_hetero import partition

from engine.native import graph
from partitions.graphs import AFFINITIES, Integers, layered, transfer_sizes

BENCHMARKS = Path(__file__).parent.parent


def median_seconds(run: Callable[[], object], rounds: int) -> float:
    """The median seconds of several runs, after an untimed one."""
    run()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_edges(
    name: str, edges: Integers, nodes: int, nbytes: Integers, devices: int, pattern: str, rounds: int
) -> dict[str, Any]:
    """Measure one graph with one pattern of devices: seconds of each mode, and the results."""
    affinity = AFFINITIES[pattern](nodes, devices)
    made = partition(edges, affinity, bytes=nbytes)
    connected = partition(edges, affinity, mode="connected", bytes=nbytes)
    must_cross = affinity[edges[:, 0]] != affinity[edges[:, 1]]
    assert made.count >= made.lower_bound
    assert devices > 2 or made.count == made.lower_bound
    graph.verify_runs(edges, made.subgraph, made.run)
    return {
        "graph": name,
        "nodes": nodes,
        "edges": len(edges),
        "devices": devices,
        "affinity": pattern,
        "seconds": median_seconds(lambda: partition(edges, affinity), rounds),
        "with_bytes_seconds": median_seconds(lambda: partition(edges, affinity, bytes=nbytes), rounds),
        "auto_seconds": median_seconds(lambda: partition(edges, affinity, mode="auto", bytes=nbytes), rounds),
        "count": made.count,
        "lower_bound": made.lower_bound,
        "connected_count": connected.count,
        "crossing_share": made.crossing_bytes / max(int(nbytes.sum()), 1),
        "must_cross_share": int(nbytes[must_cross].sum()) / max(int(nbytes.sum()), 1),
    }


def measure_random(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure layered graphs of all sizes."""
    rows = []
    for nodes in sizes:
        edges = layered(nodes)
        nbytes = transfer_sizes(edges)
        for devices in (2, 3):
            for pattern in AFFINITIES:
                own_rounds = 1 if nodes >= 1_000_000 else rounds
                rows.append(measure_edges("layered", edges, nodes, nbytes, devices, pattern, own_rounds))
    return rows


def measure_published(rounds: int) -> list[dict[str, Any]]:
    """Measure the published strategies on 5,000 nodes."""
    edges, rows = layered(5000), []
    for strategy in graph.strategies()[1:]:
        for devices in (2, 3):
            for pattern in AFFINITIES:
                affinity = AFFINITIES[pattern](5000, devices)
                made = partition(edges, affinity, strategy)
                seconds = median_seconds(lambda s=strategy, a=affinity: partition(edges, a, s), rounds)
                rows.append(
                    {
                        "strategy": strategy, "nodes": 5000, "devices": devices, "affinity": pattern,
                        "seconds": seconds, "count": made.count, "lower_bound": made.lower_bound,
                        "splits": made.splits, "fewest": partition(edges, affinity).count,
                    }
                )  # fmt: skip
    return rows


def measure_closure(rounds: int) -> list[dict[str, Any]]:
    """Measure the transitive closure of 20,000 nodes."""
    edges = layered(20_000)
    rows = []
    for threads in (1, 2):
        closure = graph.transitive_closure(edges, 20_000, threads=threads)
        seconds = median_seconds(lambda t=threads: graph.transitive_closure(edges, 20_000, threads=t), rounds)
        rows.append({"nodes": 20_000, "threads": threads, "seconds": seconds, "bytes": closure.bytes})
    return rows


def measure_memory(sizes: list[int]) -> list[dict[str, Any]]:
    """Measure the peak memory for one partition, in addition to its arrays; each in a separate process."""
    rows = []
    for nodes in sizes:
        for devices in (2, 3):
            command = [sys.executable, "-m", "partitions.split", str(nodes), str(devices)]
            result = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
            rows.append(json.loads(result.stdout))
    return rows


def _memory(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _measure_own_memory(nodes: int, devices: int) -> dict[str, Any]:
    edges, affinity = layered(nodes), AFFINITIES["random"](nodes, devices)
    partition(edges[:10], affinity[: int(edges[:10].max()) + 1])
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    made = partition(edges, affinity)
    peak = _memory("VmHWM")
    assert np.all(made.device[made.subgraph] == affinity)
    return {"nodes": nodes, "devices": devices, "added_bytes": peak - before, "peak_bytes": peak}


if __name__ == "__main__":
    print(json.dumps(_measure_own_memory(int(sys.argv[1]), int(sys.argv[2]))))
