"""A pass that takes a second for a thousand nodes takes four for four thousand: all are linear, whatever the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, OutputLike, Parameter, Result, boolean, f32
from engine.passes import Manager, Pass
from engine.passes.catalog import list_passes
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.last_position import LastPosition
from engine.passes.common.make_adaptable import MakeAdaptable
from engine.passes.common.make_stateful import MakeStateful
from engine.passes.common.masked_caches import MaskedCaches
from tests.counted_steps import counted

_MAX_GROWTH: Final = 5.0
"""How many times as many steps four times as many nodes may take; a quadratic pass takes 16 times as many."""
_FREE: Final = 3000
"""Steps that do not count: so few say nothing about a pass."""
_WEIGHTS: Final = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
_SIDE: Final = 8


def weights() -> Constant:
    return Constant(_WEIGHTS)


def _steps() -> list[Callable[[Any], Node]]:
    """Operators that passes look for, each from [4, 8] to [4, 8]."""
    return [
        lambda x: ops.Reshape(x, ops.Identity(ops.Shape(x))),
        lambda x: ops.MatMul(x, weights()),
        lambda x: ops.Add(x, Constant(np.ones(_SIDE, np.float32))),
        ops.Relu,
        lambda x: ops.Transpose(ops.Exp(ops.Transpose(x, perm=[1, 0])), perm=[1, 0]),
        lambda x: ops.Reshape(x, Constant(np.array([0, _SIDE]))),
        lambda x: ops.Div(x, Constant(np.float32(2))),
        lambda x: ops.Mul(x, ops.Sigmoid(x)),
        lambda x: ops.Softmax(x, axis=-1),
        lambda x: ops.Concat(*reversed(ops.Split(x, axis=1, num_outputs=2).outputs), axis=1),
        lambda x: ops.Mul(x, ops.Add(Constant(np.float32(1)), Constant(np.float32(2)))),
        lambda x: ops.DequantizeLinear(
            ops.QuantizeLinear(x, Constant(np.float32(0.1)), Constant(np.uint8(3))),
            Constant(np.float32(0.1)), Constant(np.uint8(3)),
        ),
    ]  # fmt: skip


def source() -> Parameter:
    return Parameter(f32, [4, _SIDE], "x")


def chain(count: int) -> Model:
    x = source()
    value: OutputLike = x
    for index in range(count):
        value = _steps()[index % len(_steps())](value)
    return Model([Result(value, "y")], [x])


def star(count: int) -> Model:
    """All read one value, and each is an output."""
    x = source()
    made = [_steps()[index % len(_steps())](x) for index in range(count)]
    return Model([Result(node, f"y{index}") for index, node in enumerate(made)], [x])


def fan_in(count: int) -> Model:
    """One reads all."""
    x = source()
    made = [ops.Mul(x, Constant(np.float32(index))) for index in range(count)]
    return Model([Result(ops.Sum(*made), "y"), Result(ops.Concat(*made, axis=0), "z")], [x])


def ladder(count: int) -> Model:
    """Two sides, both read by each rung: the number of paths doubles with each rung."""
    x = source()
    left: OutputLike = x
    right: OutputLike = x
    for index in range(count):
        left, right = _steps()[index % len(_steps())](ops.Add(left, right)), ops.Mul(right, left)
    return Model([Result(ops.Add(left, right), "y")], [x])


def equal_nodes(count: int) -> Model:
    x = source()
    made = [ops.MatMul(ops.Relu(x), Constant(_WEIGHTS.copy())) for _ in range(count)]
    return Model([Result(ops.Sum(*made), "y")], [x])


def deep_bodies(count: int) -> Model:
    """An If in the branch of an If, and so on."""
    x, condition = source(), Parameter(boolean, [], "c")

    def level(depth: int, condition: OutputLike, value: OutputLike) -> Node:
        if not depth:
            return _steps()[7](_steps()[1](value))
        t, e, c = Parameter(f32, [4, _SIDE], "t"), Parameter(f32, [4, _SIDE], "e"), Parameter(boolean, [], "c")
        bodies = {
            "then_branch": Model([ops.Neg(t)], captures=[t]),
            "else_branch": Model([ops.Add(level(depth - 1, c, ops.Relu(e)), e)], captures=[c, e]),
        }
        return ops.create("If", [condition, value, condition, value], bodies)

    return Model([Result(level(count, condition, x), "y")], [x, condition])


SHAPES: Final = {
    "chain": (chain, 24),
    "star": (star, 24),
    "fan-in": (fan_in, 16),
    "ladder": (ladder, 24),
    "equal nodes": (equal_nodes, 48),
    "deep bodies": (deep_bodies, 4),
}


def passes() -> list[type[Pass]]:
    """Those that need no arguments, and have no effect but on the model."""
    found = [info.cls for info in list_passes(["engine_cpu.passes"])]
    # All but the first are for language models.
    others = (CommonOptimizations, LastPosition, MakeAdaptable, MakeStateful, MaskedCaches)
    return [each for each in found if each.is_transformation and each not in others and _is_plain(each)]


def _is_plain(each: type[Pass]) -> bool:
    try:
        each()
    except TypeError:
        return False
    return True


def steps_of(each: type[Pass], model: Model) -> int:
    item = each()
    manager = Manager()
    manager.register_pass(item)
    if not item.may_change(model):
        return 0
    with counted() as steps:
        manager.run_passes(model)
    return steps[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_as_many_nodes_take_four_times_as_many_steps(shape: str) -> None:
    make, count = SHAPES[shape]
    small, large = make(count), make(4 * count)
    wrong = {}
    for each in passes():
        few, many = steps_of(each, small.clone()), steps_of(each, large.clone())
        if many > _MAX_GROWTH * few + _FREE:
            wrong[each.name] = few, many
    assert not wrong


@pytest.mark.parametrize("shape", SHAPES)
def test_all_passes_together(shape: str) -> None:
    make, count = SHAPES[shape]
    found = []
    for model in (make(count), make(4 * count)):
        manager = Manager()
        manager.register_pass(CommonOptimizations)
        with counted() as steps:
            manager.run_passes(model)
        found.append(steps[0])
    assert found[1] <= _MAX_GROWTH * found[0]
