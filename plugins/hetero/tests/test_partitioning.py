"""`partition`: what tools and the device rely on, the published counter-examples, and the fewest subgraphs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_hetero import Partition, partition
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, GraphError, PartitionError
from engine.native import graph

STRATEGIES = graph.strategies()
MODES = ("min_subgraphs", "connected", "auto")
# Each subgraph of these is convex, and the two wait for each other.
MUTUAL = ([(0, 2), (1, 2), (0, 3), (1, 3)], [0, 1, 0, 1])
# A restriction that is recorded once goes stale: x is node 0, and nodes 1 to 5 are n0 to n4.
STALE = ([(0, 1), (1, 2), (0, 3), (3, 4), (1, 4), (3, 5), (2, 5)], [0, 0, 1, 1, 0, 1])


@st.composite
def graphs(draw: st.DrawFn, most_nodes: int = 8, devices: int = 4) -> tuple[list[tuple[int, int]], list[int]]:
    nodes = draw(st.integers(0, most_nodes))
    names = draw(st.permutations(range(nodes)))
    pairs = [(names[a], names[b]) for a, b in itertools.combinations(range(nodes), 2)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=3 * nodes)) if pairs else []
    return edges, draw(st.lists(st.integers(0, devices - 1), min_size=nodes, max_size=nodes))


def check(edges: list[tuple[int, int]], affinity: list[int], made: Partition) -> None:
    nodes = len(affinity)
    assert made.subgraph.shape == made.run.shape == (nodes,)
    assert sorted(set(made.subgraph.tolist())) == list(range(made.count)) == sorted(made.order.tolist())
    assert made.device[made.subgraph].tolist() == affinity
    place = np.argsort(made.order)
    for source, target in edges:
        if made.subgraph[source] == made.subgraph[target]:
            assert made.run[source] == made.run[target]
        else:
            assert place[made.subgraph[source]] < place[made.subgraph[target]]
            assert made.run[source] < made.run[target]
    assert made.count >= made.lower_bound == graph.lower_bound(edges, affinity)


def fewest_turns(edges: list[tuple[int, int]], affinity: list[int]) -> int:
    """Try all sequences of devices, each doing all that it can in its turn."""
    needs = [{source for source, target in edges if target == node} for node in range(len(affinity))]

    def turn(done: frozenset[int], device: int) -> frozenset[int]:
        while True:
            more = {node for node, own in enumerate(affinity) if own == device and needs[node] <= done} - done
            if not more:
                return done
            done |= more

    reached, turns = {frozenset[int]()}, 0
    while frozenset(range(len(affinity))) not in reached:
        reached = {turn(done, device) for done in reached for device in set(affinity)}
        turns += 1
    return turns


@settings(max_examples=300, deadline=None)
@given(graphs(), st.sampled_from(STRATEGIES), st.sampled_from(MODES))
def test_every_partition_can_be_run(case: tuple[list[tuple[int, int]], list[int]], strategy: str, mode: str) -> None:
    edges, affinity = case
    check(edges, affinity, partition(edges, affinity, strategy, mode))


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_potential_finds_the_fewest_subgraphs(case: tuple[list[tuple[int, int]], list[int]]) -> None:
    edges, affinity = case
    made = partition(edges, affinity)
    assert made.lower_bound == fewest_turns(edges, affinity) == made.count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("edges", "affinity"), [MUTUAL, STALE], ids=["mutual", "stale"])
def test_published_algorithms_fail_here(
    edges: list[tuple[int, int]], affinity: list[int], strategy: str, mode: str
) -> None:
    check(edges, affinity, partition(edges, affinity, strategy, mode))


def test_subgraphs_that_wait_for_each_other_are_named() -> None:
    edges, _ = MUTUAL
    with pytest.raises(PartitionError, match="wait for each other: 0 -> 1 -> 0; split one"):
        graph.check_partition(edges, [0, 1, 0, 1])
    assert graph.check_partition(edges, [0, 1, 2, 1]).tolist() == [0, 1, 2]


def test_random_graphs_of_every_size_in_batches() -> None:
    rng = np.random.default_rng(5)
    for nodes in (100, 1000, 20_000):
        for devices, mode in itertools.product((2, 3, 4), MODES):
            target = rng.integers(1, nodes, int(1.7 * nodes))
            edges = np.stack([np.maximum(0, target - 1 - rng.integers(0, 50, target.size)), target], 1)
            affinity = rng.integers(0, devices, nodes)
            nbytes = rng.integers(0, 1000, len(edges))
            made = partition(edges, affinity, mode=mode, bytes=nbytes)
            graph.verify_runs(edges, made.subgraph, made.run)
            graph.check_partition(edges, made.subgraph)
            assert (made.device[made.subgraph] == affinity).all()
            crossing = made.subgraph[edges[:, 0]] != made.subgraph[edges[:, 1]]
            assert made.crossing_bytes == nbytes[crossing].sum()
            assert made.count >= made.lower_bound
            if devices == 2 and mode == "min_subgraphs":
                assert made.count == made.lower_bound


def test_bytes_are_saved_without_more_subgraphs() -> None:
    # The first device's turns are the first and the third. As early as possible, 1 is apart from 3, which it feeds.
    edges, affinity = [(0, 2), (2, 3), (1, 3)], [0, 0, 1, 0]
    made = partition(edges, affinity, bytes=[1, 1, 1000])
    assert made.subgraph.tolist() == [0, 2, 1, 2]
    assert (made.count, made.crossing_bytes) == (3, 2)


def test_a_whole_chain_moves_where_its_last_edge_is_the_largest_that_crosses() -> None:
    # 0 -> 1 -> 4 with heavy 0 -> 1: neither can move alone, both together save the edge to 4.
    edges, affinity = [(0, 1), (1, 4), (2, 3), (3, 4)], [0, 0, 0, 1, 0]
    made = partition(edges, affinity, bytes=[1000, 10, 1, 1])
    assert made.subgraph.tolist() == [2, 2, 0, 1, 2]
    assert made.crossing_bytes == 2


def test_connected_parts_are_joined_where_nothing_is_between() -> None:
    # Two chains side by side, each alternating: runs take one device's parts of both together.
    edges, affinity = [(0, 1), (1, 2), (3, 4), (4, 5)], [0, 1, 0, 0, 1, 0]
    assert partition(edges, affinity).count == 3
    assert partition(edges, affinity, mode="connected").count == 6


def test_auto_keeps_the_shorter_schedule_and_reports_both() -> None:
    # One device's chain feeds the other's, twice: connected parts overlap, the fewest subgraphs cannot.
    edges, affinity = [(0, 1), (2, 3)], [0, 1, 0, 1]
    slow = graph.Costs(node_seconds=np.full(4, 1.0), edge_seconds=np.zeros(2), overhead_seconds=0.0)
    made = partition(edges, affinity, mode="auto", costs=slow)
    assert made.count == 4
    assert made.statistics["connected.seconds"] == pytest.approx(3.0)
    assert made.statistics["min_subgraphs.seconds"] == pytest.approx(4.0)
    assert (made.statistics["min_subgraphs.count"], made.statistics["is_connected"]) == (2, 1)
    dear = graph.Costs(node_seconds=np.full(4, 1.0), edge_seconds=np.zeros(2), overhead_seconds=10.0)
    made = partition(edges, affinity, mode="auto", costs=dear)
    assert (made.count, made.statistics["is_connected"]) == (2, 0)
    assert made.statistics["min_subgraphs.seconds"] == pytest.approx(24.0)
    assert made.statistics["connected.seconds"] == pytest.approx(33.0)


def test_a_transfer_delays_what_waits_for_it() -> None:
    costs = graph.Costs(node_seconds=[1.0, 1.0, 1.0], edge_seconds=[5.0, 7.0], overhead_seconds=0.5)
    made = partition([(0, 1), (0, 2)], [0, 1, 1], mode="auto", costs=costs)
    # One tensor for both consumers crosses once, in one subgraph, and takes the longer time.
    assert made.statistics["min_subgraphs.seconds"] == pytest.approx(1.5 + 7.0 + 2.5)


def test_atoms_are_never_split() -> None:
    # Alone, 0 and 2 would be in different turns of their device.
    edges, affinity = [(1, 2), (0, 3)], [0, 1, 0, 1]
    assert len(set(partition(edges, affinity, bytes=[1, 1]).subgraph[[0, 2]])) <= 2
    for strategy in STRATEGIES:
        made = partition(edges, affinity, strategy, atoms=[7, -1, 7, -1])
        assert made.subgraph[0] == made.subgraph[2]
        check(edges, affinity, made)


def test_an_atom_grows_to_what_lies_between() -> None:
    made = partition([(0, 1), (1, 2), (2, 3)], [0, 0, 0, 1], atoms=[4, -1, 4, -1])
    assert made.subgraph.tolist() == [0, 0, 0, 1]


def test_an_atom_that_a_path_of_another_device_leaves_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"0 \(device 0\) -> 1 \(device 1\) -> 2 \(device 0\)"):
        partition([(0, 1), (1, 2)], [0, 1, 0], atoms=[4, -1, 4])
    # Two atoms that wait for each other.
    with pytest.raises(PartitionError, match="an atom cannot stay whole"):
        partition([(0, 3), (1, 2)], [0, 1, 0, 1], atoms=[4, 5, 4, 5])
    with pytest.raises(PartitionError, match="atom 4 has node 0 of device 0 and node 1 of device 1"):
        partition([], [0, 1], atoms=[4, 4])


def test_results_do_not_depend_on_how_devices_are_numbered() -> None:
    edges, affinity = STALE
    made = partition(edges, affinity)
    renamed = partition(edges, [7 if device else 3 for device in affinity])
    assert renamed.subgraph.tolist() == made.subgraph.tolist()
    assert renamed.device.tolist() == [7 if device else 3 for device in made.device]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_graphs_of_nothing_and_of_one(strategy: str) -> None:
    empty = partition([], [], strategy)
    assert (empty.count, empty.lower_bound, empty.crossing_bytes) == (0, 0, 0)
    assert empty.subgraph.shape == empty.order.shape == (0,)
    assert partition(np.empty((0, 2), np.int32), [5], strategy).device.tolist() == [5]


def test_parallel_edges_count_each() -> None:
    made = partition([(0, 1), (0, 1)], [0, 1], bytes=[3, 4])
    assert (made.count, made.crossing_bytes) == (2, 7)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([(0, 1), (1, 2), (2, 0)], [0, 0, 0]), GraphError, "cycle: 0 -> 1 -> 2 -> 0"),
        (([(1, 1)], [0, 0]), GraphError, "edge 0 leads from node 1 to itself"),
        (([(0, 2)], [0, 0]), GraphError, r"edge 0 leads from node 0 to node 2; expected nodes 0\.\.1"),
        (([(0, -1)], [0, 0]), GraphError, "to node -1"),
        (([0, 1], [0, 0]), GraphError, r"edges has the shape \(2\); expected \(E, 2\)"),
        (([(0.0, 1.0)], [0, 0]), PartitionError, "edges has elements of type float64; expected integers"),
        (([(0, 1)], [0, -1]), PartitionError, "affinity of node 1 is -1"),
        (([(0, 1)], [[0, 0]]), PartitionError, "affinity has 2 dimensions; expected one"),
        (([(0, 1)], ["a", "b"]), PartitionError, "affinity has elements of type <U1"),
        (([(0, 1)], np.array([0, 2**63], np.uint64)), PartitionError, "signed 64-bit"),
        (([(0, 1)], [0, 1], "fastest"), PartitionError, 'no strategy "fastest"; expected one of potential'),
        (([(0, 1)], [0, 1], "potential", "best"), PartitionError, 'no mode "best"; expected one of min_subgraphs'),
        (([(0, 1)], [0, 1], "potential", "auto", [1, 2]), PartitionError, "bytes has 2 numbers; expected 1"),
        (([(0, 1)], [0, 1], "potential", "auto", [-1]), PartitionError, "bytes of edge 0 is -1"),
        (([(0, 1), (0, 1)], [0, 1], "potential", "auto", [2**62, 2**62]), PartitionError, "do not fit into 64 bits"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[object, ...], error: type[EngineError], message: str) -> None:
    with pytest.raises(error, match=message):
        partition(*arguments)  # type: ignore[arg-type]


def test_bad_costs_and_atoms_are_named() -> None:
    with pytest.raises(PartitionError, match="node_seconds number 1 is nan"):
        partition([(0, 1)], [0, 1], mode="auto", costs=graph.Costs(node_seconds=[0.0, np.nan]))
    with pytest.raises(PartitionError, match="edge_seconds has 2 numbers; expected 1"):
        partition([(0, 1)], [0, 1], mode="auto", costs=graph.Costs(edge_seconds=[0.0, 1.0]))
    with pytest.raises(PartitionError, match="overhead_seconds number 0 is -1"):
        partition([(0, 1)], [0, 1], mode="auto", costs=graph.Costs(overhead_seconds=-1.0))
    with pytest.raises(PartitionError, match="atoms has 1 numbers; expected 2"):
        partition([(0, 1)], [0, 1], atoms=[0])


def test_more_devices_than_there_can_be_are_refused() -> None:
    made = partition([], np.arange(1024) % 1000)
    assert made.count == made.lower_bound == 1000
    with pytest.raises(PartitionError, match="affinity names 1025 devices; expected at most 1024"):
        partition([], np.arange(1025))


def test_a_long_cycle_is_named_in_part() -> None:
    nodes = 100_000
    edges = [(node, (node + 1) % nodes) for node in range(nodes)]
    with pytest.raises(GraphError, match=r"0 -> 1 -> 2 -> 3 -> 4 -> 5 -> \(99988 more\) -> 99994") as caught:
        partition(edges, np.zeros(nodes, int))
    assert len(str(caught.value)) < 400
