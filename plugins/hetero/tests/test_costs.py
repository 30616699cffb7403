"""Costs of nodes and transfers. If these fail, nodes are placed on the wrong device, or predictions are unreliable."""

from __future__ import annotations

import numpy as np
import pytest
from engine_hetero.affinity.costs.cost_model import DEFAULT_RATES, CostModel, Rates, default_costs, value_numbers
from engine_hetero.query.claims import NATIVE, REFERENCE
from engine_hetero.query.model_graph import ModelGraph

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, PartialShape, boolean, f32, i64
from engine.passes.work import ASSUMED_TRIPS, work_of
from engine.testing.networks import seeded_network


def tensor(*shape: int | str) -> Parameter:
    return Parameter(f32, list(shape), f"x{len(shape)}_{'_'.join(map(str, shape))}")


def weights(*shape: int) -> Constant:
    return Constant(np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("node", "operations"),
    [
        (lambda: ops.MatMul(tensor(5, 3, 4), weights(4, 7)), 2 * 5 * 3 * 7 * 4),
        (lambda: ops.Gemm(tensor(4, 3), weights(4, 7), transA=1), 2 * 3 * 7 * 4),
        (lambda: ops.Conv(tensor(2, 8, 9, 9), weights(6, 4, 3, 3), group=2), 2 * (2 * 6 * 7 * 7) * (4 * 3 * 3)),
        (lambda: ops.ConvTranspose(tensor(1, 8, 5, 5), weights(8, 6, 3, 3)), 2 * (8 * 5 * 5) * (6 * 3 * 3)),
        (
            lambda: ops.Attention(tensor(2, 4, 10, 16), tensor(2, 4, 12, 16), tensor(2, 4, 12, 8)),
            2 * 2 * 4 * 10 * 12 * (16 + 8),
        ),
        (
            lambda: ops.Attention(
                tensor(2, 10, 64), tensor(2, 12, 32), tensor(2, 12, 16), q_num_heads=4, kv_num_heads=2
            ),
            2 * 2 * 10 * 12 * (64 + 16 // 2 * 4),
        ),
        (
            lambda: ops.LSTM(tensor(5, 2, 3), weights(1, 4 * 7, 3), weights(1, 4 * 7, 7), hidden_size=7),
            2 * 5 * 2 * (28 * 3 + 28 * 7),
        ),
        (lambda: ops.Einsum(tensor(3, 4), tensor(4, 5), equation="ij,jk->ik"), 2 * 3 * 4 * 5),
        (lambda: ops.Relu(tensor(3, 4)), 12),
        (lambda: ops.MatMul(tensor("n", 4), weights(4, 7)), 2 * 7 * 4),
    ],
)
def test_operations_are_counted_from_the_shapes(node: object, operations: int) -> None:
    made = node()  # type: ignore[operator]
    assert work_of(made).operations == operations


def test_bytes_are_what_is_read_and_written_and_views_move_none() -> None:
    assert work_of(ops.Add(tensor(3, 4), weights(4))).bytes == 4 * (12 + 4 + 12)
    assert work_of(ops.Reshape(tensor(3, 4), Constant(np.array([12]), i64))) == (0, 0)


def test_bodies_count_as_often_as_they_run() -> None:
    captured = Parameter(f32, [16], "captured")
    step = Parameter(i64, [], "step")
    on = Parameter(boolean, [], "on")
    body = Model([on, ops.Relu(captured)], [step, on], captures=[captured])
    loop = Node("Loop", [None, Parameter(boolean, [], "on"), tensor(16)], {"body": body}, num_outputs=1)
    assert work_of(loop).operations >= ASSUMED_TRIPS * 16


def branching() -> ModelGraph:
    """a -> b, c; both read the same value of 400 bytes; d reads both."""
    x = tensor(100)
    a = ops.Relu(x)
    b, c = ops.Neg(a), ops.Abs(a)
    return ModelGraph.of(Model([ops.Add(b, c)], [x]))


def costs_of(graph: ModelGraph, **options: object) -> CostModel:
    return default_costs(graph, ("A", "B"), **options)  # type: ignore[arg-type]


def test_a_node_takes_as_long_as_its_operations_or_its_bytes_and_its_start() -> None:
    x = tensor(100, 100)
    graph = ModelGraph.of(Model([ops.Relu(ops.MatMul(x, weights(100, 100)))], [x]))
    rates = [
        Rates(operations=1e6, bytes=1e12, node_overhead=0.25),
        Rates(operations=1e12, bytes=1e6, node_overhead=0.5),
    ]
    product, relu = 2 * 100**3, 100**2
    np.testing.assert_allclose(
        costs_of(graph, rates=rates).node_seconds,
        [[product / 1e6 + 0.25, relu / 1e6 + 0.25], [3 * 4 * 100**2 / 1e6 + 0.5, 2 * 4 * 100**2 / 1e6 + 0.5]],
        rtol=4 * np.finfo(np.float64).eps,
    )


def test_default_figures_are_never_called_measured() -> None:
    costs = costs_of(branching())
    assert costs.origin == "default"
    assert not costs.is_measured.any()
    half = costs.with_measured(0, np.array([1e-3, np.nan, np.nan, np.nan]))
    assert half.origin == "measured and default"
    assert half.is_measured.tolist() == [[True, False, False, False], [False] * 4]
    whole = half.with_measured(0, np.full(4, 1e-3)).with_measured(1, np.full(4, 1e-3))
    assert whole.origin == "measured"


def test_figures_that_are_missing_follow_the_scale_of_those_that_were_measured() -> None:
    costs = costs_of(branching())
    before = costs.node_seconds[0]
    seconds = np.array([3 * before[0], 5 * before[1], np.nan, 5 * before[3]])
    np.testing.assert_allclose(costs.with_measured(0, seconds).node_seconds[0], before * [3, 5, 5, 5])
    np.testing.assert_array_equal(costs.with_measured(0, seconds).node_seconds[1], costs.node_seconds[1])
    assert costs.with_measured(0, np.full(4, np.nan)) is costs


def test_the_reference_evaluator_is_a_last_resort() -> None:
    graph = ModelGraph.of(Core().read_model(seeded_network("mobilenet_v2", small=True).model))
    levels = np.full((2, len(graph)), NATIVE)
    levels[1] = REFERENCE
    costs = costs_of(graph, levels=levels)
    assert (costs.node_seconds[1] > 5 * costs.node_seconds[0]).all()


def test_a_value_is_moved_once_to_every_subgraph_that_reads_it() -> None:
    graph = branching()
    costs = costs_of(graph)
    one = costs.transfer_seconds(0, 1, 400)
    assert one == DEFAULT_RATES.transfer_overhead + 400 / DEFAULT_RATES.transfer_bytes
    affinity = np.array([0, 1, 1, 1])
    assert costs.edge_seconds(graph, affinity, affinity).sum() == one, "two readers in one subgraph share a transfer"
    apart = costs.edge_seconds(graph, affinity, np.array([0, 1, 2, 2]))
    assert apart.sum() == 2 * one + costs.transfer_seconds(1, 1, 400), "each subgraph gets its own"
    assert not costs.edge_seconds(graph, affinity, np.zeros(4, np.int64)).any()
    assert costs.total_seconds(graph, affinity) == pytest.approx(costs.placed_seconds(affinity).sum() + one)


def test_devices_in_one_memory_pay_only_for_handing_over() -> None:
    shared = np.ones((2, 2), bool)
    costs = costs_of(branching(), shares_memory=shared, rates=[Rates(), Rates(transfer_overhead=1e-3)])
    assert costs.transfer_seconds(0, 1, 1 << 30) == 1e-3
    assert costs.transfer_seconds(0, 0, 1 << 30) == DEFAULT_RATES.transfer_overhead


def test_values_are_numbered_by_identity() -> None:
    graph = branching()
    numbers = value_numbers(graph).tolist()
    assert len(set(numbers)) == 3
    assert numbers[0] == numbers[1]


def test_costs_of_an_empty_graph_are_empty() -> None:
    x = tensor(2)
    graph = ModelGraph.of(Model([x], [x]))
    costs = costs_of(graph)
    assert costs.node_seconds.shape == (2, 0)
    assert costs.total_seconds(graph, np.zeros(0, np.int64)) == 0


def test_looking_up_reads_what_is_looked_up() -> None:
    """A lookup in an embedding table of 30,000 rows costs only the few rows that a sentence needs."""
    table = Parameter(f32, PartialShape([30000, 64]), "table")
    rows = Parameter(i64, PartialShape([12]), "rows")
    moved = work_of(ops.Gather(table, rows)).bytes
    assert moved == 2 * 12 * 64 * 4 + 12 * 8
