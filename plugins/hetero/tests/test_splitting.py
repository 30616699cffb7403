"""The results that parts pass to others: each additional one is written to memory, and keeps operations from being
fused.
"""

from __future__ import annotations

import numpy as np
from engine_hetero.parts.splitting import split
from engine_hetero.query.model_graph import ModelGraph

from engine import ops
from engine.ir import Constant, Model, Parameter, f32


def test_a_part_has_only_the_results_that_others_read() -> None:
    x = Parameter(f32, [2, 3], "x")
    inner = ops.Add(x, Constant(np.ones(3, np.float32)))
    passed = ops.Relu(inner)
    graph = ModelGraph.of(Model([ops.Neg(passed)], [x]))
    first, second = split(graph, [[0, 1], [2]], ["A", "B"])
    assert [value.node for value in first.outputs] == [passed]
    assert len(second.outputs) == 1
    assert [len(part.inputs) for part in (first, second)] == [1, 1]
