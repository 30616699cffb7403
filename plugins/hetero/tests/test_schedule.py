"""A prediction decides between partitions and tells users what to change: it has to be a possible schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_hetero.affinity.costs.cost_model import CostModel, default_costs
from engine_hetero.division.schedule import Schedule, list_schedule, predict
from engine_hetero.query.claims import Claims
from engine_hetero.query.model_graph import Ints, ModelGraph
from engine_hetero.report.findings import findings

from engine import ops
from engine.errors import PartitionError
from engine.ir import Model, Parameter, f32
from engine.plugin_api import QueryResult, RefusalCause, Support


def scheduled(
    edges: list[tuple[int, int]], device: list[int], seconds: list[float], transfer: float = 0.0, overhead: float = 0.0
) -> Schedule:
    """The schedule with one subgraph per node."""
    count = len(device)
    return list_schedule(
        np.array(edges, np.int64).reshape(-1, 2),
        np.arange(count),
        np.array(device, np.int64),
        np.arange(count),
        np.array(seconds),
        np.full(len(edges), transfer),
        np.full(2, overhead),
    )


def test_one_device_runs_one_subgraph_at_a_time() -> None:
    schedule = scheduled([], [0, 0, 0], [1.0, 2.0, 3.0])
    assert schedule.start.tolist() == [0, 1, 3]
    assert schedule.end.tolist() == [1, 3, 6]
    assert schedule.seconds == 6


def test_independent_subgraphs_of_two_devices_overlap() -> None:
    assert scheduled([(0, 2), (1, 2)], [0, 1, 0], [2.0, 3.0, 1.0]).seconds == 4


def test_a_subgraph_waits_for_its_transfer_while_others_run() -> None:
    """0 on A feeds 1 on B and 2 on A; 3 on A needs both."""
    schedule = scheduled([(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 0, 0], [1.0, 1.0, 1.0, 1.0], transfer=5.0)
    assert schedule.start.tolist() == [0, 6, 6, 12]
    assert schedule.seconds == 13


def test_starting_a_subgraph_costs_its_devices_overhead() -> None:
    assert scheduled([(0, 1)], [0, 1], [1.0, 1.0], overhead=0.5).seconds == 3


def test_values_between_two_subgraphs_come_one_after_the_other() -> None:
    schedule = list_schedule(
        np.array([(0, 2), (1, 3)]),
        np.array([0, 0, 1, 1]),
        np.array([0, 1]),
        np.array([0, 1]),
        np.ones(4),
        np.array([3.0, 4.0]),
        0.0,
    )
    assert schedule.start.tolist() == [0, 9]


def test_subgraphs_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(PartitionError, match="2 of 3 subgraphs depend on each other"):
        scheduled([(0, 1), (1, 2), (2, 1)], [0, 1, 0], [1.0] * 3)


def test_nothing_takes_no_time() -> None:
    schedule = scheduled([], [], [])
    assert schedule.seconds == 0
    assert schedule.start.shape == (0,)


@pytest.mark.parametrize("seed", range(200))
def test_every_schedule_can_happen_and_leaves_no_device_idle_without_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    edges = [(i, j) for j in range(count) for i in range(j) if rng.random() < 0.3]
    device = rng.integers(0, 3, count)
    seconds, transfer = rng.integers(0, 9, count) * 1.0, rng.integers(0, 9, len(edges)) * 1.0
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    schedule = list_schedule(pairs, np.arange(count), device, np.arange(count), seconds, transfer, 1.0)
    arrival = np.zeros(count)
    np.maximum.at(arrival, pairs[:, 1], schedule.end[pairs[:, 0]] + transfer)
    assert (schedule.start >= arrival).all()
    np.testing.assert_allclose(schedule.end, schedule.start + seconds + 1)
    assert schedule.seconds == schedule.end.max()
    for number in range(count):
        mates = np.flatnonzero((device == device[number]) & (np.arange(count) != number))
        for mate in mates:
            assert schedule.end[mate] <= schedule.start[number] or schedule.end[number] <= schedule.start[mate]
        waits = arrival[number], schedule.start[number]
        busy = np.clip(schedule.end[mates], *waits) - np.clip(schedule.start[mates], *waits)
        assert busy.sum() == pytest.approx(waits[1] - waits[0]), "it waits while its device is idle"


# -- findings ----------------------------------------------------------------------------------------------


def chain(count: int) -> ModelGraph:
    x = Parameter(f32, [1000], "x")
    node = ops.Relu(x)
    node.friendly_name = "n0"
    for number in range(1, count):
        node = ops.Relu(node)
        node.friendly_name = f"n{number}"
    return ModelGraph.of(Model([node], [x]))


def claims_of(graph: ModelGraph, refused: dict[int, set[str]], atoms: tuple[frozenset[str], ...] = ()) -> Claims:
    answers = [
        QueryResult(
            {
                n: Support.refused(RefusalCause.OP, "none") if n in refused.get(d, ()) else Support.native()
                for n in graph.names
            },
            atoms if d == 0 else (),
        )
        for d in range(2)
    ]
    return Claims.of(graph, ("A", "B"), answers)


def costs_of(graph: ModelGraph, node: float, transfer: float, overhead: float) -> CostModel:
    costs = default_costs(graph, ("A", "B"))
    return replace(
        costs,
        node_seconds=np.full((2, len(graph)), node),
        transfer_overhead=np.full((2, 2), transfer),
        transfer_per_byte=np.zeros((2, 2)),
        subgraph_overhead=np.full(2, overhead),
    )


def runs(affinity: Ints) -> Ints:
    """On a chain, a subgraph for each run of one device."""
    return np.concatenate([[0], np.cumsum(affinity[1:] != affinity[:-1])])


def found(claims: Claims, costs: CostModel, affinity: list[int]) -> tuple[str, ...]:
    where = np.array(affinity)
    subgraph = runs(where)
    return findings(claims, costs, where, subgraph, np.arange(subgraph.max() + 1))


def test_a_small_subgraph_between_others_is_pointed_out() -> None:
    graph = chain(5)
    costs = costs_of(graph, 10e-6, 4e-6, 1e-6)
    (sentence,) = [s for s in found(claims_of(graph, {}), costs, [0, 0, 1, 0, 0]) if s.startswith("subgraph 1 ")]
    assert sentence == (
        "subgraph 1 on B (`n2`) costs more than it gains: it computes for 10.0 us and its transfers take 8.0 us; "
        "on A with subgraphs 0 and 2, an inference is expected to take 51.0 us instead of 61.0 us (default costs)"
    )


def test_what_the_other_device_refuses_is_where_it_has_to_be() -> None:
    graph = chain(5)
    costs = costs_of(graph, 10e-6, 4e-6, 1e-6)
    claims = claims_of(graph, {0: {"n2"}, 1: {"n0", "n1", "n3", "n4"}})
    assert found(claims, costs, [0, 0, 1, 0, 0]) == ()


def test_a_split_that_gains_is_not_pointed_out() -> None:
    graph = chain(5)
    costs = costs_of(graph, 10e-6, 1e-6, 1e-6)
    seconds = costs.node_seconds.copy()
    seconds[0, 2] = 1e-3
    seconds[1, [0, 1, 3, 4]] = 1e-3
    assert found(claims_of(graph, {}), replace(costs, node_seconds=seconds), [0, 0, 1, 0, 0]) == ()


def test_what_would_tear_an_atom_is_not_proposed() -> None:
    """n2 cannot go to A, which runs n2 and n3 only together, while n3 has to be on B."""
    graph = chain(4)
    costs = costs_of(graph, 1e-6, 4e-6, 1e-6)
    claims = claims_of(graph, {1: {"n0", "n1"}}, (frozenset({"n2", "n3"}),))
    sentences = findings(claims, costs, np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2]), np.arange(3))
    assert not any("on A with" in sentence for sentence in sentences)
    assert any("with subgraph" in sentence for sentence in sentences), "two subgraphs of B could be one"


def test_subgraphs_that_could_not_be_one_are_left_apart() -> None:
    """a on A feeds b on B and c on A, which also needs b: merging a and c would create a cycle with b."""
    x = Parameter(f32, [4], "x")
    a = ops.Relu(x)
    b = ops.Neg(a)
    graph = ModelGraph.of(Model([ops.Add(a, b)], [x]))
    costs = costs_of(graph, 1e-6, 4e-6, 1e-6)
    claims = claims_of(graph, {0: {graph.names[1]}, 1: {graph.names[0], graph.names[2]}})
    assert findings(claims, costs, np.array([0, 1, 0]), np.array([0, 1, 2]), np.arange(3)) == ()


def test_one_subgraph_has_no_neighbours() -> None:
    graph = chain(3)
    assert found(claims_of(graph, {}), costs_of(graph, 1e-6, 1e-6, 1e-6), [0, 0, 0]) == ()


def test_the_prediction_of_a_partition_counts_nodes_transfers_and_starts() -> None:
    graph = chain(4)
    costs = costs_of(graph, 10e-6, 3e-6, 2e-6)
    affinity = np.array([0, 0, 1, 1])
    schedule = predict(graph, costs, affinity, affinity, np.arange(2))
    assert schedule.seconds == pytest.approx((4 * 10 + 3 + 2 * 2) * 1e-6)
    assert schedule.device.tolist() == [0, 1]
