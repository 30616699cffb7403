"""The benchmark of partitions: that its graphs are what it says, or its figures mislead."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

pytest.importorskip("engine_hetero")

from partition import table  # noqa: E402
from partitions.graphs import AFFINITIES, EDGES_A_NODE, layered, transfer_sizes  # noqa: E402
from partitions.split import measure_closure, measure_memory, measure_random  # noqa: E402


@pytest.mark.parametrize("nodes", [1000, 20_000])
def test_layered_graphs_are_acyclic_and_as_dense_as_said(nodes: int) -> None:
    edges = layered(nodes)
    assert len(edges) == int(EDGES_A_NODE * nodes)
    assert (edges[:, 0] < edges[:, 1]).all()
    assert edges.min() >= 0
    assert edges.max() < nodes
    assert (transfer_sizes(edges) >= 400).all()


def test_patterns_use_all_devices() -> None:
    for pattern in AFFINITIES.values():
        assert set(np.unique(pattern(1000, 3))) == {0, 1, 2}


def test_what_is_measured_is_reported() -> None:
    rows = measure_random([1000], 1)
    assert len(rows) == 2 * len(AFFINITIES)
    assert all(row["lower_bound"] <= row["count"] <= row["connected_count"] for row in rows)
    assert all(row["must_cross_share"] <= row["crossing_share"] <= 1 for row in rows)
    lines = table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    assert len({len(line) for line in lines}) == 1
    assert all(row["bytes"] > 20_000**2 / 16 for row in measure_closure(1))


def test_memory_is_that_of_a_process_of_its_own() -> None:
    (two, three) = measure_memory([100_000])
    assert two["nodes"] == three["nodes"] == 100_000
    assert 0 < two["added_bytes"] < two["peak_bytes"]
