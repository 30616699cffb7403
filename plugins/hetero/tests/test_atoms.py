"""Sets of nodes that a device supports only together: those that share a node are one.

If this fails, a device is given a part of what it needs as a whole.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine_hetero.query.claims import Claims
from engine_hetero.query.model_graph import ModelGraph

from engine import ops
from engine.ir import Model, Parameter, f32
from engine.plugin_api import QueryResult, Support


def joined(atoms: Sequence[frozenset[str]]) -> set[frozenset[str]]:
    """A simple reference: merge each set with all sets that it intersects."""
    groups: list[frozenset[str]] = []
    for atom in atoms:
        met = [group for group in groups if group & atom]
        groups = [*(group for group in groups if not group & atom), atom.union(*met)]
    return {group for group in groups if len(group) > 1}


def test_atoms_that_share_a_node_are_one() -> None:
    value = Parameter(f32, [2], "x").output(0)
    nodes = []
    for position in range(12):
        nodes.append(ops.Neg(value))
        nodes[-1].friendly_name = f"n{position}"
        value = nodes[-1].output(0)
    graph = ModelGraph.of(Model([value], [nodes[0].input_value(0).node]))
    chooser = random.Random(5)
    for _ in range(500):
        atoms = [frozenset(chooser.sample(graph.names, chooser.randint(0, 4))) for _ in range(chooser.randint(0, 7))]
        answer = QueryResult(dict.fromkeys(graph.names, Support.native()), atoms=tuple(atoms))
        (found,) = Claims.of(graph, ("D",), [answer]).atoms
        assert {frozenset(graph.names[number] for number in atom) for atom in found} == joined(atoms)
        assert len(found) == len(joined(atoms))
