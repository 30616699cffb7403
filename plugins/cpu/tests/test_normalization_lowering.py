"""Softmax and the normalizations as steps, in each layout that they offer, against their evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engine_cpu.item import Item
from engine_cpu.layout import Layout
from engine_cpu.lowering import decisions
from engine_cpu.segment import LoweredSegment, lower_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, f32, f64
from engine.native import Context, default_isa
from engine.ops.internal import Activation, ChannelNormalization, ScaleShift
from engine.ops.reference import evaluate
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[np.float32]]


def x_of(*shape: int | str) -> Parameter:
    return Parameter(f32, list(shape), "x")


def constant(*shape: int, seed: int) -> Constant:
    return Constant(values(*shape, seed=seed), f32)


def segments(node: Node) -> list[LoweredSegment]:
    """The node as a plan, in each of its layouts."""
    decision = decisions()[node]
    item = Item.of(decision.spec, decision.lowering)
    sources = [v for v in node.input_values if v is not None and isinstance(v.node, Parameter)]
    wanted = [value for value in node.outputs if value.index == 0 or value.num_consumers]
    store = WeightStore(default_isa())
    return [
        lower_segment([item], {item: option}, list(dict.fromkeys(sources)), wanted, store, CpuTuner(2))
        for option in decision.lowering.layouts(decision.spec)
        if option.precision != "bf16"
    ]


def check(node: Node, inputs: Sequence[Array], layouts: int = 1, tolerance: float = 1e-5) -> None:
    """Every layout gives the evaluator's results, and there are `layouts` of them."""
    given = iter(inputs)
    known: dict[Node, Array] = {}
    for value in node.input_values:
        if value is not None and value.node not in known:
            known[value.node] = value.node.data if isinstance(value.node, Constant) else next(given)
    expected = evaluate(node, [None if value is None else known[value.node] for value in node.input_values])
    built = segments(node)
    assert len(built) == layouts
    for segment in built:
        outputs = [np.full(value.shape.get_shape(), np.nan, np.float32) for value in segment.outputs]
        Context(segment.plan).run(list(inputs), outputs)
        for value, actual in zip(segment.outputs, outputs, strict=True):
            np.testing.assert_allclose(actual, expected[value.index], rtol=tolerance, atol=tolerance)


def test_layer_normalization_stores_the_statistics_that_are_read() -> None:
    attributes = {"axis": 1}
    node = ops.create("LayerNormalization", [x_of(5, 7), constant(7, seed=1)], attributes, num_outputs=3)
    readers = [ops.Relu(node.output(1)), ops.Relu(node.output(2))]
    check(node, [values(5, 7)])
    del readers[0]
    check(node, [values(5, 7)])


def test_a_scale_that_is_computed() -> None:
    scale = Parameter(f32, [19], "scale")
    node = ops.create("LayerNormalization", [x_of(5, 19), scale])
    check(node, [values(5, 19), values(19, seed=1)])


@pytest.mark.parametrize("bias", [False, True])
def test_channel_normalization(bias: bool) -> None:
    node = ChannelNormalization(x_of(2, 21, 5, 3), constant(21, seed=1), constant(21, seed=2) if bias else None)
    check(node, [values(2, 21, 5, 3)], layouts=2)


@pytest.mark.parametrize(
    "activation",
    [None, Activation("Relu"), Activation("Mish"), Activation("LeakyRelu", (0.25,)), Activation("Clip", (-0.5, 0.5))],
)
def test_scale_shift(activation: Activation | None) -> None:
    node = ScaleShift(x_of(2, 21, 5, 3), constant(21, seed=1), constant(21, seed=2), activation=activation)
    check(node, [values(2, 21, 5, 3)], layouts=2)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)])
def test_tensors_without_elements(shape: tuple[int, ...]) -> None:
    parameters = [constant(4, seed=1), constant(4, seed=2)]
    nodes = [
        ops.Softmax(x_of(*shape)),
        ops.create("MeanVarianceNormalization", [x_of(*shape)], {"axes": [2]}),
        ops.create("LRN", [x_of(*shape)], {"size": 3}),
        ops.create("GroupNormalization", [x_of(*shape), *parameters], {"num_groups": 2}),
        ChannelNormalization(x_of(*shape), *parameters),
    ]
    for segment in (segment for node in nodes for segment in segments(node)):
        y = np.empty(shape, np.float32)
        Context(segment.plan).run([y.copy()], [y])


def normalization(op_type: str, shape: Sequence[int | str], *parameters: Any, **attributes: Any) -> Node:
    return ops.create(op_type, [x_of(*shape), *parameters], attributes)


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (ops.Softmax(Parameter(f64, [2, 3], "x")), "element type"),
        (normalization("InstanceNormalization", (2,), *(Parameter(f32, [1], name) for name in "ab")), "rank"),
        (normalization("MeanVarianceNormalization", (2, 3, 4), axes=[0, 1]), "attribute"),
        (normalization("LayerNormalization", (2, "L", "C"), Parameter(f32, [1], "scale")), "constant"),
        (normalization("LayerNormalization", (2, 3, 4), Parameter(f32, [3, 4], "scale")), "shape"),
        (normalization("BatchNormalization", (2, 3), *(Parameter(f32, [3], name) for name in "abcd")), "constant"),
    ],
)
def test_what_has_no_kernel_is_refused(node: Node, cause: str) -> None:
    why = decisions().refusal(node)
    assert why is not None
    assert why.cause == cause


def test_a_map_stays_blocked() -> None:
    node = ChannelNormalization(x_of(1, 16, 2, 2), constant(16, seed=1))
    plain, blocked = segments(node)
    assert [step.kernel for step in plain.plan.steps] == ["channel_norm_f32"]
    assert [step.kernel for step in blocked.plan.steps] == ["to_blocked_f32", "channel_norm_f32", "from_blocked_f32"]
    decision = decisions()[node]
    assert [option.outputs for option in decision.lowering.layouts(decision.spec)] == [
        (Layout.PLAIN,),
        (Layout.BLOCKED,),
    ]


@pytest.mark.parametrize("op_type", ["InstanceNormalization", "GroupNormalization"])
def test_a_map_without_channels(op_type: str) -> None:
    x, w = Parameter(f32, [2, 0, 3, 3], "x"), Parameter(f32, [0], "w")
    node = ops.create(op_type, [x, w, w], {"num_groups": 1} if op_type == "GroupNormalization" else {})
    result = Core().compile_model(Model([node.output(0)], [x, w]), "CPU")(
        [np.zeros((2, 0, 3, 3), np.float32), np.zeros(0, np.float32)]
    )
    assert result[0].shape == (2, 0, 3, 3)
