"""Channel shuffles: which are recognised."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cpu.passes.channel_shuffle_fusion import ChannelShuffleFusion

from engine import ops
from engine.ir import Constant, Model, Node, Output, Parameter, f32
from engine.passes import Manager, check_equivalence


def shuffled(x: Output, between: list[int], order: list[int], after: list[int]) -> Node:
    split = ops.Reshape(x, Constant(np.array(between)))
    return ops.Reshape(ops.Transpose(split, perm=order), Constant(np.array(after)))


def transformed(model: Model) -> list[str]:
    graph = model.clone()
    manager = Manager()
    manager.register_pass(ChannelShuffleFusion)
    manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    return [node.op_type for node in graph.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]


KEPT = ["Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("shape", "between", "order", "after", "expected"),
    [
        ((1, 24, 4, 5), [1, 3, 8, 4, 5], [0, 2, 1, 3, 4], [1, 24, 4, 5], ["ChannelShuffle"]),
        (("N", 24, 4, 5), [-1, 3, 8, 4, 5], [0, 2, 1, 3, 4], [-1, 24, 4, 5], ["ChannelShuffle"]),
        ((2, 24, 6), [2, 4, 6, 6], [0, 2, 1, 3], [2, 24, 6], ["ChannelShuffle"]),
        ((1, 24, 4, 5), [1, 3, 8, 4, 5], [0, 2, 1, 4, 3], [1, 24, 5, 4], KEPT),
        ((1, 24, 4, 5), [1, 3, 8, 4, 5], [0, 2, 1, 3, 4], [1, 12, 8, 5], KEPT),
        ((1, 24, 4, 5), [1, 24, 2, 2, 5], [0, 2, 1, 3, 4], [1, 24, 4, 5], KEPT),
        ((1, 24, 4, 5), [1, 3, 8, 20], [0, 2, 1, 3], [1, 24, 4, 5], KEPT),
    ],
)
def test_what_is_recognised(
    shape: tuple[int | str, ...], between: list[int], order: list[int], after: list[int], expected: list[str]
) -> None:
    x = Parameter(f32, list(shape), "x")
    assert transformed(Model([shuffled(x.output(0), between, order, after)], [x])) == expected


def test_a_shuffle_whose_parts_are_read_stays() -> None:
    x = Parameter(f32, [1, 24, 4, 5], "x")
    split = ops.Reshape(x, Constant(np.array([1, 3, 8, 4, 5])))
    result = ops.Reshape(ops.Transpose(split, perm=[0, 2, 1, 3, 4]), Constant(np.array([1, 24, 4, 5])))
    assert transformed(Model([result, ops.Relu(split)], [x])).count("ChannelShuffle") == 0
