"""Batch normalizations that are not folded into a convolution: the operators that they become compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_cpu.passes.scale_shift_fusion import ScaleShiftFusion

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, f32
from engine.ops.internal import as_onnx, decompose
from engine.passes import InitNodeInfo, Manager, check_equivalence
from engine.passes.runtime_info import FUSED_NAMES

RNG = np.random.default_rng(5)


def array(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def normalized(x: Output, num_outputs: int = 1, **attributes: Any) -> Node:
    channels = x.shape[1].get_length()
    variance = Constant(np.abs(RNG.standard_normal(channels)).astype(np.float32) + 0.5)
    parameters = [array(channels), array(channels), array(channels), variance]
    return ops.create("BatchNormalization", [x, *parameters], attributes, num_outputs=num_outputs)


def model_of(make: Callable[[Output], Node], *shape: int | str) -> Model:
    x = Parameter(f32, list(shape or ("N", 5, 3, 3)), "x")
    return Model([make(x.output(0))], [x])


def fused(model: Model) -> list[str]:
    """The operators after the pass, which computes the same and changes nothing the second time."""
    graph = model.clone()
    manager = Manager()
    manager.register_pass(ScaleShiftFusion)
    assert manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    return [node.op_type for node in graph.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: normalized(x), ["ScaleShift"]),
        (lambda x: ops.Relu(normalized(x)), ["ScaleShift"]),
        (lambda x: ops.Mish(normalized(x)), ["ScaleShift"]),
        (lambda x: ops.Relu(ops.Add(ops.Mul(normalized(x), array(5, 1, 1)), array(1, 5, 1, 1))), ["ScaleShift"]),
        (lambda x: ops.Clip(ops.Mul(array(1), normalized(x)), Constant(-0.5), Constant(0.5)), ["ScaleShift"]),
        (lambda x: ops.Mul(ops.Relu(normalized(x)), array(5, 1, 1)), ["ScaleShift", "Mul"]),
        (lambda x: ops.Add(normalized(x), array(3)), ["ScaleShift", "Add"]),
        (lambda x: ops.Add(normalized(x), array(1, 1, 5, 1, 1)), ["ScaleShift", "Add"]),
        (lambda x: ops.Softmax(normalized(x)), ["ScaleShift", "Softmax"]),
        (lambda x: ops.Add(normalized(x), x), ["ScaleShift", "Add"]),
    ],
)
def test_what_follows_is_taken_as_far_as_it_fits(make: Callable[[Output], Node], expected: list[str]) -> None:
    assert fused(model_of(make)) == expected


def test_a_value_that_others_read_stays() -> None:
    def make(x: Output) -> Node:
        y = normalized(x)
        return ops.Add(ops.Relu(y), y)

    assert fused(model_of(make)) == ["ScaleShift", "Relu", "Add"]


def test_one_channel_is_not_spread_over_many() -> None:
    assert fused(model_of(lambda x: ops.Mul(normalized(x), array(5, 1, 1)), 2, 1, 3, 3)) == ["ScaleShift", "Mul"]


def test_training_and_computed_statistics_stay() -> None:
    x, scale = Parameter(f32, ["N", 5], "x"), Parameter(f32, [5], "scale")
    for node in (
        ops.create("BatchNormalization", [x, scale, array(5), array(5), array(5)]),
        normalized(x.output(0), num_outputs=3, training_mode=1),
    ):
        manager = Manager()
        manager.register_pass(ScaleShiftFusion)
        assert not manager.run_passes(Model([node.output(0)], [x, scale]))


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", pytest.param("OPENCL", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("convolved", [False, True])
def test_a_channel_without_variance_is_infinite_on_the_side_of_its_difference(device: str, convolved: bool) -> None:
    """As the sum of a product and an offset, 0 * inf, it was NaN."""
    numbers = [np.float32(values) for values in ([1, 1], [0, 0], [0, 2], [0, 4])]
    x = Parameter(f32, [1, 2, 1, 3], "x")
    weights = Constant(np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1))
    source = ops.Conv(x, weights) if convolved else x
    y = ops.BatchNormalization(source, *map(Constant, numbers), epsilon=0.0)
    data = np.float32([[-1, 1, 5], [0, 2, 6]]).reshape(1, 2, 1, 3)
    (found,) = Core().compile_model(Model([y], [x]), device)({"x": data}).values()
    np.testing.assert_array_equal(np.asarray(found).reshape(2, 3), [[-np.inf, np.inf, np.inf], [-1, 0, 2]])


def test_products_that_overflow_are_not_joined() -> None:
    x = Parameter(f32, [1, 2, 3, 3], "x")
    one, zero, many = (Constant(np.full(2, value, np.float32)) for value in (1, 0, 1e30))
    y = ops.Mul(ops.BatchNormalization(x, many, one, zero, one), Constant(np.float32(1e30)))
    assert fused(Model([y], [x])) == ["ScaleShift", "Mul"]


def test_names_of_all_that_is_fused_are_kept() -> None:
    def make(x: Output) -> Node:
        inner = normalized(x)
        inner.friendly_name = "inner"
        outer = ops.Relu(inner)
        outer.friendly_name = "outer"
        return outer

    graph = model_of(make)
    manager = Manager()
    manager.register_pass(InitNodeInfo)
    manager.register_pass(ScaleShiftFusion)
    manager.run_passes(graph)
    (node,) = (node for node in graph.ordered_nodes() if node.op_type == "ScaleShift")
    assert node.friendly_name == "outer"
    assert {"inner", "outer"} <= set(node.rt_info[FUSED_NAMES])
    assert [output.node.op_type for output in decompose(node)] == ["Relu"]
    assert "ScaleShift" not in {each.op_type for each in as_onnx(graph).ordered_nodes()}
