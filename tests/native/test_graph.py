"""The facade of the graph algorithms: arrays in and out, and what is refused. `csrc/tests/graph_*` tests the rest."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from engine.errors import GraphError, PartitionError
from engine.native import graph

DIAMOND = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]


@pytest.mark.parametrize("max_bytes", [0, graph.CLOSURE_BYTES])
def test_a_closure_answers_with_and_without_a_table(max_bytes: int) -> None:
    closure = graph.transitive_closure(DIAMOND, 6, max_bytes)
    assert closure.is_dense == (max_bytes > 0)
    assert closure.bytes > 0
    assert closure.reaches(0, 5)
    assert not closure.reaches(2, 3)
    assert not closure.reaches(2, 2)
    assert not closure.reaches(5, 0)
    assert closure.path_nodes(0, 4).tolist() == [1, 2, 3]
    assert closure.path_nodes(1, 2).tolist() == []
    assert closure.path_nodes(2, 3).tolist() == []


def test_a_closure_refuses_what_is_no_node() -> None:
    closure = graph.transitive_closure(DIAMOND, 6)
    with pytest.raises(GraphError, match=r"there is no node 6; expected 0\.\.5"):
        closure.reaches(0, 6)
    with pytest.raises(GraphError, match="there is no node -1"):
        closure.path_nodes(-1, 0)
    with pytest.raises(GraphError, match="a graph of -1 nodes"):
        graph.transitive_closure([], -1)
    with pytest.raises(GraphError, match="at most"):
        graph.transitive_closure([], 2**40)


def test_threads_do_not_change_a_closure() -> None:
    rng = np.random.default_rng(0)
    edges = np.sort(rng.integers(0, 3000, (6000, 2)), axis=1)
    edges = edges[edges[:, 0] < edges[:, 1]]
    one, three = (graph.transitive_closure(edges, 3000, threads=threads) for threads in (1, 3))
    for source, target in rng.integers(0, 3000, (2000, 2)).tolist():
        assert one.reaches(source, target) == three.reaches(source, target)


def test_the_fewest_subgraphs_of_two_devices_are_known() -> None:
    assert graph.lower_bound(DIAMOND, [0, 0, 0, 1, 0, 0]) == 3
    assert graph.lower_bound(DIAMOND, [9, 9, 9, 9, 9, 9]) == 1
    assert graph.lower_bound([], []) == 0


def test_a_bound_for_three_devices_counts_what_pairs_need() -> None:
    # No path changes devices more than once, yet each pair of devices has to take three turns.
    edges = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]
    affinity = [0, 1, 1, 0, 0, 2, 2, 0, 1, 2, 2, 1]
    assert graph.lower_bound(edges, affinity) == 5


def test_certificates_are_verified() -> None:
    graph.verify_runs(DIAMOND, [0, 0, 0, 1, 2, 2], [0, 0, 0, 1, 2, 2])
    with pytest.raises(PartitionError, match=r"the edge from node 1 .*leads to a run that is not later"):
        graph.verify_runs(DIAMOND, [0, 0, 0, 1, 2, 2], [1, 1, 1, 1, 2, 2])
    with pytest.raises(PartitionError, match="run has 5 numbers; expected one for each of 6"):
        graph.verify_runs(DIAMOND, [0, 0, 0, 1, 2, 2], [0, 0, 0, 1, 2])
    with pytest.raises(PartitionError, match="no node is in subgraph 1"):
        graph.verify_runs(DIAMOND, [0, 0, 0, 2, 2, 2], [0, 0, 0, 1, 1, 1])
    with pytest.raises(PartitionError, match="node 3 is in subgraph -1"):
        graph.verify_runs(DIAMOND, [0, 0, 0, -1, 2, 2], [0, 0, 0, 1, 1, 1])


def test_a_certificate_has_one_run_for_a_subgraph() -> None:
    # Runs that rise on every edge between subgraphs do not prove anything if they differ within one: these two wait for
    # each other.
    edges, subgraph = [(0, 1), (2, 3)], [0, 1, 1, 0]
    with pytest.raises(PartitionError, match="wait for each other"):
        graph.check_partition(edges, subgraph)
    with pytest.raises(PartitionError, match="nodes 1 and 2 are both in subgraph 1 and have the runs 6 and 1"):
        graph.verify_runs(edges, subgraph, [5, 6, 1, 2])


def test_the_cheapest_cut_is_found() -> None:
    # Node 1 has no opinion and goes with its stronger neighbour.
    cut = graph.min_cut([(0, 1), (1, 2)], first=[0, 0, 9], second=[9, 0, 0], forward=[5, 3])
    assert (cut.side.tolist(), cut.cost) == ([0, 0, 1], 3)
    # An edge that is dear one way only.
    cut = graph.min_cut([(0, 1)], first=[0, 9], second=[9, 0], forward=[1], backward=[100])
    assert (cut.side.tolist(), cut.cost) == ([0, 1], 1)
    cut = graph.min_cut([(1, 0)], first=[0, 9], second=[9, 0], forward=[1], backward=[100])
    assert cut.cost == 9


def test_cuts_refuse_costs_that_do_not_fit() -> None:
    with pytest.raises(PartitionError, match="second has 1 numbers; expected 2"):
        graph.min_cut([], [0, 0], [0], [])
    with pytest.raises(PartitionError, match="forward number 0 is -4"):
        graph.min_cut([(0, 1)], [0, 0], [0, 0], [-4])
    with pytest.raises(PartitionError, match="do not fit into 64 bits"):
        graph.min_cut([], [2**62, 2**62], [0, 0], [])


@pytest.mark.parametrize("edge", [(-1, 1), (2, 1), (0, -1), (0, 2)])
def test_edges_refuse_nodes_that_there_are_not(edge: tuple[int, int]) -> None:
    with pytest.raises(GraphError, match=rf"from node {edge[0]} to node {edge[1]}; expected nodes 0\.\.1 of 2"):
        graph.min_cut([edge], [0, 0], [0, 0], [0])


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("which", ["node_seconds", "edge_seconds"])
def test_a_partition_refuses_times_that_are_none(which: str, at: int, value: float) -> None:
    times = [0.0, 1.0, 2.0]
    times[at] = value
    costs = graph.Costs(**{which: times})
    with pytest.raises(PartitionError, match=rf"{which} number {at} is .*expected a finite time, 0 or more"):
        graph.partition_graph([(0, 1), (1, 2), (0, 2)], [0, 1, 0], costs=costs)


def test_threads_partition_side_by_side() -> None:
    rng = np.random.default_rng(1)
    target = rng.integers(1, 5000, 8500)
    edges = np.stack([np.maximum(0, target - 1 - rng.integers(0, 50, target.size)), target], 1)
    affinity = rng.integers(0, 3, 5000)
    alone = graph.partition_graph(edges, affinity)
    results: list[graph.RawPartition] = []
    threads = [
        threading.Thread(target=lambda: results.append(graph.partition_graph(edges, affinity))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert all((result.subgraph == alone.subgraph).all() for result in results)
