"""Concats of the outputs of a Split: which read the Split's input instead, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from engine_cpu.passes.split_concat_elimination import SplitConcatElimination

from engine import ops
from engine.ir import Model, Node, Output, Parameter, f32
from engine.passes import Manager, check_equivalence


def parts(x: Output, axis: int = 1) -> Sequence[Output]:
    return ops.Split(x, axis=axis, num_outputs=2).outputs


def first_and_second(x: Output, others: Sequence[Output], axis: int = 1) -> Node:
    a, b = parts(x, axis)
    return ops.Concat(*others[:1], a, b, ops.Relu(b), *others[1:], axis=1)


def operators(make: Callable[[Output], Node]) -> list[tuple[str, int]]:
    """The joining operators and the number of their inputs, after the pass; which changes nothing the second time."""
    x = Parameter(f32, ["N", 6, 4, 4], "x")
    model = Model([make(x.output(0))], [x])
    graph = model.clone()
    manager = Manager()
    manager.register_pass(SplitConcatElimination)
    manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    return [(node.op_type, node.num_inputs) for node in graph.ordered_nodes() if node.op_type == "Concat"]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda x: first_and_second(x, []), 2),
        (lambda x: first_and_second(x, [x, x]), 4),
        (lambda x: ops.Concat(*parts(x), *parts(x), axis=-3), 2),
        (lambda x: ops.Concat(*reversed(parts(x)), axis=1), 2),
        (lambda x: ops.Concat(parts(x)[0], parts(x)[1], axis=1), 2),
        (lambda x: ops.Concat(parts(x)[0], x, axis=1), 2),
        (lambda x: ops.Concat(*parts(x, 2), axis=1), 2),
    ],
    ids=[
        "with what was made of them",
        "among others",
        "twice",
        "reversed",
        "of two splits",
        "one part",
        "another axis",
    ],
)
def test_what_is_taken_whole(make: Callable[[Output], Node], inputs: int) -> None:
    assert operators(make) == [("Concat", inputs)]
