"""The strategy `restriction_map` is TVM's proposal, with restrictions that are true when they are read.

Users who compare devices with TVM rely on the same subgraphs; with stale restrictions, two of them may wait for each
other.
"""

from __future__ import annotations

import random

import pytest
from engine_hetero import partition

from engine.native.graph import verify_runs

from . import published
from .test_rollback import random_graph, subgraphs

# A - B, A - C, B - D, C - D; C is on another device.
EXAMPLE = [(0, 1), (0, 2), (1, 3), (2, 3)]
EXAMPLE_DEVICES = [0, 0, 1, 0]

# A = f(x); B = f(n0); B = f(x); A = f(n2, n0); B = f(n2, n1).
STALE = [(0, 1), (2, 3), (0, 3), (2, 4), (1, 4)]
STALE_DEVICES = [0, 1, 1, 0, 1]


def test_the_example_of_the_proposal() -> None:
    made = partition(EXAMPLE, EXAMPLE_DEVICES, "restriction_map")
    assert subgraphs(made.subgraph) == [[0, 1], [2], [3]]
    assert made.order.tolist() == [0, 1, 2]
    assert not made.repaired
    assert published.restriction_map(EXAMPLE, EXAMPLE_DEVICES) == [[0, 1], [2], [3]]


def test_a_subgraph_may_have_several_outputs_and_join_two_others() -> None:
    # 0 and 1 feed another device and 4, which joins both; 4 and 5 are outputs of one subgraph.
    edges = [(0, 2), (1, 3), (0, 4), (1, 4), (0, 5)]
    made = partition(edges, [0, 0, 1, 1, 0, 0], "restriction_map")
    assert subgraphs(made.subgraph) == [[0, 1, 4, 5], [2], [3]]


def test_restrictions_do_not_go_stale() -> None:
    # Where the model reads its outputs in this order, the proposal forgets that n1 depends on what n0 gains with n3.
    chosen = published.restriction_map(STALE, STALE_DEVICES, outputs=[1, 3, 4])
    assert chosen == [[0, 3], [1, 2, 4]]
    assert not published.quotient_is_acyclic(STALE, chosen)
    # The same order without a choice of outputs: n1 is read by an output that comes before all others.
    edges, devices = [*STALE, (1, 5)], [*STALE_DEVICES, 1]
    names = [1, 2, 3, 4, 5, 0]
    edges = [(names[a], names[b]) for a, b in edges]
    affinity = [devices[names.index(node)] for node in range(6)]
    assert not published.quotient_is_acyclic(edges, published.restriction_map(edges, affinity))
    made = partition(edges, affinity, "restriction_map")
    verify_runs(edges, made.subgraph, made.run)
    assert not made.repaired
    assert subgraphs(made.subgraph) == [[0, 2, 5], [1, 4], [3]]


@pytest.mark.parametrize(("most_nodes", "count", "cyclic_results"), [(12, 5000, 1), (30, 1500, 11)])
def test_equal_to_the_published_text(most_nodes: int, count: int, cyclic_results: int) -> None:
    cyclic = 0
    for seed in range(count):
        edges, affinity = random_graph(random.Random(seed), most_nodes)
        chosen = published.restriction_map(edges, affinity)
        made = partition(edges, affinity, "restriction_map")
        where = f"seed {seed}: {edges}, {affinity}"
        assert not made.repaired, where
        verify_runs(edges, made.subgraph, made.run)
        if published.quotient_is_acyclic(edges, chosen):
            assert subgraphs(made.subgraph) == chosen, where
        else:
            cyclic += 1
    assert cyclic == cyclic_results, f"{cyclic} of {count} partitions of the published text are cyclic"


def test_atoms_are_joined_whole() -> None:
    # Without the atom 3 could not join 0: a path leaves through 2. What lies between belongs to the atom.
    made = partition(EXAMPLE, [0, 0, 0, 0], "restriction_map", atoms=[7, -1, -1, 7])
    assert subgraphs(made.subgraph) == [[0, 1, 2, 3]]
    # 1 and 3 are one atom, which depends on 2, which depends on 0: neither joins 0.
    made = partition(EXAMPLE, EXAMPLE_DEVICES, "restriction_map", atoms=[-1, 7, -1, 7])
    assert subgraphs(made.subgraph) == [[0], [1, 3], [2]]
