"""Operators that move elements as steps, in each layout that they offer, against their evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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
from engine.errors import InputError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, f32, f64, i8, i64
from engine.native import Context, cpu_features, default_isa, isas_within
from engine.ops import evaluate_model
from engine.ops.internal import ChannelShuffle
from engine.ops.reference import evaluate
from engine.testing.values import values as random_values

Array = np.ndarray[Any, np.dtype[Any]]
SUM_OF_TAPS = 16 * float(np.finfo(np.float32).eps)
ISAS = isas_within(cpu_features().isa)


values = functools.partial(random_values, scale=100)


def x_of(*shape: int | str, element_type: ElementType = f32) -> Parameter:
    return Parameter(element_type, list(shape), "x")


def integers(*numbers: int) -> Constant:
    return Constant(np.array(numbers, np.int64), i64)


def segments(node: Node, isa: str | None = None) -> list[LoweredSegment]:
    """The node as a plan, in each of its layouts."""
    decision = decisions()[node]
    item = Item.of(decision.spec, decision.lowering)
    sources = [v for v in node.input_values if v is not None and isinstance(v.node, Parameter)]
    store = WeightStore(isa or default_isa())
    return [
        lower_segment([item], {item: option}, list(dict.fromkeys(sources)), node.outputs, store, CpuTuner(2))
        for option in decision.lowering.layouts(decision.spec)
        if option.precision != "bf16"
    ]


def run(segment: LoweredSegment, inputs: Sequence[Array]) -> list[Array]:
    outputs = [np.full(v.shape.get_shape(), 77, v.element_type.numpy) for v in segment.outputs]
    Context(segment.plan).run(list(inputs), outputs)
    return outputs


def check(node: Node, *inputs: Array, layouts: int = 1, tolerance: float = 0.0, isa: str | None = None) -> None:
    """Every layout gives the evaluator's results, and there are `layouts` of them."""
    given = iter(inputs)
    known: dict[Node, Array] = {}
    for value in node.input_values:
        if value is not None and value.node not in known:
            known[value.node] = value.node.data if isinstance(value.node, Constant) else next(given)
    expected = evaluate(node, [None if value is None else known[value.node] for value in node.input_values])
    built = segments(node, isa)
    assert len(built) == layouts
    for segment in built:
        for got, wanted in zip(run(segment, inputs), expected, strict=True):
            if tolerance:
                np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(inputs[0]).max())
            else:
                np.testing.assert_array_equal(got, wanted)


def steps(node: Node, layout: int = 0) -> list[str]:
    """The kernels that move something between a network's input and its output."""
    return [step.kernel for step in segments(node)[layout].plan.steps]


def test_a_transpose_of_unit_axes_is_no_step() -> None:
    node = ops.Transpose(x_of(1, 8, 1, 4), perm=[2, 1, 0, 3])
    assert steps(node) == ["copy"]  # a network's output is not its input
    check(node, values(1, 8, 1, 4))


def test_reshapes_are_no_steps() -> None:
    x = x_of(2, 20, 3, 4)
    for node in (
        ops.Reshape(x, integers(2, 240)),
        ops.Flatten(x),
        ops.Unsqueeze(x, integers(0)),
        ops.Squeeze(x_of(2, 20, 1, 4), integers(2)),
    ):
        assert steps(node) == ["copy"]
    check(ops.Reshape(x, integers(2, 240)), values(2, 20, 3, 4))
    check(ops.Reshape(x, integers(2, 20, 12)), values(2, 20, 3, 4), layouts=2)
    check(ops.Identity(x), values(2, 20, 3, 4), layouts=2)


def test_concat_of_constants_and_of_one_value_twice() -> None:
    x, known = x_of(1, 16, 2, 2), Constant(values(1, 5, 2, 2, seed=3), f32)
    check(ops.Concat(x, known, x, axis=1), values(1, 16, 2, 2), layouts=2)


def nested(x: Output) -> Output:
    return ops.Concat(ops.Concat(x, ops.Neg(x), axis=1), x, axis=1).output(0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels", [16, 20, 32])
@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("joined", [
    lambda x: ops.Concat(x, x, axis=1),
    lambda x: ops.Concat(x, x, x, axis=0),
    lambda x: ops.Concat(x, ops.Split(x, integers(1, 2), axis=2).output(0), axis=2),
    lambda x: ops.Concat(ops.Slice(x, integers(16), integers(99), integers(1)), x, axis=1),
    lambda x: ops.Concat(x, ops.Slice(x, integers(0), integers(7), integers(1)), axis=1),
    lambda x: ops.Concat(x, ops.Reshape(x, integers(0, -1, 3, 2)), axis=1),
    nested,
])  # fmt: skip
def test_concat_of_a_value_made_in_place_and_the_same_again(
    joined: Callable[[Output], Node], convolved: bool, channels: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", isa)
    x = x_of(1, channels, 3, 2)
    y = ops.Conv(x, Constant(values(channels, channels, 1, 1) / 100)) if convolved else ops.Sqrt(ops.Abs(x))
    model = Model([joined(y.output(0))], [x])
    given = values(1, channels, 3, 2)
    got = np.array(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})([given])[0])
    np.testing.assert_allclose(got, evaluate_model(model, [given])[0], rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 0, 7, 8), (1, 16, 0, 8)])
def test_parts_of_nothing(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    check(ops.Split(x_of(*shape), integers(1, 4, 3), axis=-1), x, layouts=2)
    check(ops.Slice(x_of(*shape), integers(3), integers(5), integers(3)), x, layouts=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 48, 6, 5), (2, 30, 4, 4), (1, 240, 3, 3), (2, 12, 7)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_channel_shuffle(groups: int, shape: tuple[int, ...], isa: str) -> None:
    check(ChannelShuffle(x_of(*shape), groups=groups), values(*shape), layouts=2, isa=isa)


def test_pad_of_channels_and_negative_pads() -> None:
    x = values(2, 20, 4, 5)
    check(ops.Pad(x_of(*x.shape), integers(0, 1, 0, -1, 0, 2, -1, 1)), x)
    check(ops.Pad(x_of(*x.shape), integers(0, 1, 0, 0, 0, -1, 0, 1)), x, layouts=2)


def test_gather_by_known_indices_is_a_view_or_a_copy() -> None:
    x = x_of(4, 3, 5)
    for node, kernels in (
        (ops.Gather(x, Constant(np.array(2), i64), axis=0), ["copy"]),  # to the network's output
        (ops.Gather(x, integers(1, 2, 3), axis=0), ["copy"]),
        (ops.Gather(x, Constant(np.array(-1), i64), axis=1), ["strided_copy"]),
        (ops.Gather(x, integers(3, 1), axis=0), ["strided_copy"]),
        (ops.Gather(x, integers(0, 2, 1), axis=0), ["gather"]),
        (ops.Gather(x, Constant(np.array([[0, 1], [1, 2], [2, 3]]), i64), axis=2), ["strided_copy"]),  # windows
        (ops.Gather(x, Constant(np.array([[2, 1], [1, 0]]), i64), axis=1), ["strided_copy"]),
        (ops.Gather(x, Constant(np.array([[2], [1]]), i64), axis=0), ["strided_copy"]),
        (ops.Gather(x, Constant(np.array([[0, 2], [1, 2]]), i64), axis=1), ["gather"]),
        (ops.Gather(x, Constant(np.array([[-1, 0], [-2, -1]]), i64), axis=1), ["gather"]),  # 2, 0; 1, 2
    ):
        assert steps(node) == kernels
        check(node, values(4, 3, 5))


def test_an_index_out_of_range_is_an_input_error_that_names_the_node() -> None:
    node = ops.Gather(x_of(3, 4), Parameter(i64, [2], "indices"), axis=0)
    node.friendly_name = "embedding"
    (segment,) = segments(node)
    with pytest.raises(
        InputError,
        match=r"Gather `embedding`, input `indices`: index 3 is out of range for a dimension of 3; expected -3\.\.2",
    ):
        run(segment, [values(3, 4), np.array([0, 3])])
    np.testing.assert_array_equal(run(segment, [values(3, 4), np.array([0, -3])])[0], values(3, 4)[[0, 0]])


def test_a_region_that_is_read_backwards() -> None:
    x = values(1, 16, 9, 11)
    roi = Constant(np.array([0, 0, 1, 0.75, 1, 1, 0, 0.25], np.float32), f32)
    for mode in ("nearest", "linear", "cubic"):
        node = ops.Resize(x_of(*x.shape), roi, None, integers(1, 16, 12, 5), mode=mode,
                          coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
        check(node, x, layouts=2, tolerance=SUM_OF_TAPS)


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (ops.ConstantOfShape(Parameter(i64, [500], "s")), "constant"),
        (ops.Resize(x_of(1, 4, element_type=f64), None, None, integers(1, 2), mode="linear"), "element type"),
        (ops.ScatterND(x_of(4, element_type=i8), Parameter(i64, [1, 1], "i"), Parameter(i8, [1], "u"), reduction="add"),
         "element type"),
        (ops.Transpose(x_of(1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2)), "rank"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.op_type,
)  # fmt: skip
def test_refusals(node: Node, cause: str) -> None:
    refused = decisions().refusal(node)
    assert refused is not None
    assert refused.cause == cause


def test_lengths_may_be_unknown_when_asked() -> None:
    x = x_of("n", 16, "h", "w")
    for node in (
        ops.Transpose(x, perm=[0, 2, 3, 1]),
        ops.Concat(x, x, axis=1),
        ops.Resize(x, None, Constant(np.array([1, 1, 2, 2], np.float32), f32), mode="nearest"),
        ops.Gather(x, Parameter(i64, ["k"], "indices"), axis=2),
    ):
        assert decisions().refusal(node) is None


def test_layouts_are_those_of_maps() -> None:
    node = ops.Transpose(x_of(1, 16, 4, 4), perm=[0, 2, 3, 1])
    decision = decisions()[node]
    assert [option.inputs[0] for option in decision.lowering.layouts(decision.spec)] == [
        Layout.PLAIN,
        Layout.BLOCKED,
        Layout.PLAIN,
    ]
