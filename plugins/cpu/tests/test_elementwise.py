"""Elementwise operators on the device against the reference evaluator, alone and in groups, plain and blocked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engine_cpu.assignment import assign_layouts
from engine_cpu.grouping import group_nodes
from engine_cpu.layout import Layout
from engine_cpu.lowering import decisions
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.reshape import IdentityLowering
from engine_cpu.segment import LoweredSegment, lower_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, PartialShape, f32, i64
from engine.ir.element_type import bf16, boolean, f16, f64, string, u8
from engine.lowering import Decisions, LoweringTable
from engine.native import Context, codes, default_isa, pointwise_functions
from engine.ops import evaluate_model
from engine.ops.fused_activation import ACTIVATIONS, Activation
from engine.ops.spec import OperatorSpec

Array = np.ndarray[Any, np.dtype[Any]]

TOLERANCES = {f32: 1e-6, f64: 1e-12, f16: 2e-3, bf16: 1.6e-2}
"""A few units in the last place; of f16 and bf16, two."""


def random_values(element_type: ElementType, *shape: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    if element_type is boolean:
        return random.integers(0, 2, shape).astype(np.bool_)
    if element_type.is_real:
        return random.normal(0, 2, shape).astype(element_type.numpy)
    low = 0 if element_type is u8 else -100
    return random.integers(low, 100, shape).astype(element_type.numpy)


def segment_of(
    parameters: Sequence[Parameter], outputs: Sequence[Output], layout: Layout | None = None
) -> tuple[LoweredSegment, list[tuple[str, ...]]]:
    """The plan of the nodes that compute `outputs`, and the operators of each item; in `layout` if possible."""
    model = Model(outputs, list(parameters), name="test")
    nodes = [n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]
    items = group_nodes(nodes, outputs, decisions())
    options = assign_layouts(items, outputs)
    if layout is not None:
        for item in items:
            matching = [each for each in item.lowering.item_layouts(item) if layout in each.outputs]
            options[item] = matching[0] if matching else options[item]
    sources = [parameter.output(0) for parameter in parameters]
    segment = lower_segment(items, options, sources, outputs, WeightStore(default_isa()), CpuTuner(1))
    return segment, [tuple(node.op_type for node in item.nodes) for item in items]


def run(segment: LoweredSegment, inputs: Sequence[Array]) -> list[Array]:
    results = [np.zeros(v.shape.get_shape(), v.element_type.numpy) for v in segment.outputs]
    Context(segment.plan).run([np.ascontiguousarray(each) for each in inputs], results)
    return results


def parameters_of(arrays: Sequence[Array]) -> list[Parameter]:
    return [
        Parameter(ElementType.from_numpy(array.dtype), list(array.shape), f"x{index}")
        for index, array in enumerate(arrays)
    ]


def assert_equals_reference(
    parameters: Sequence[Parameter], outputs: Sequence[Output], arrays: Sequence[Array]
) -> None:
    with np.errstate(all="ignore"):
        expected = evaluate_model(Model(outputs, list(parameters), name="test"), list(arrays))
    segment, _ = segment_of(parameters, outputs)
    for value, want, got in zip(outputs, expected, run(segment, arrays), strict=True):
        assert_close(got, want, value.element_type)


def assert_close(got: Array, want: Array, element_type: ElementType) -> None:
    assert got.dtype == want.dtype
    if element_type not in TOLERANCES:
        np.testing.assert_array_equal(got, want)
        return
    tolerance = TOLERANCES[element_type]
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


def create(op_type: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Node:
    return ops.create(op_type, list(inputs), attributes)


@pytest.mark.parametrize("numerator", [np.iinfo(np.int32).min, -7, 0, 7])
@pytest.mark.parametrize("divisor", [0, -1, 2])
def test_integer_division_never_crashes(numerator: int, divisor: int) -> None:
    arrays = [np.full(20, numerator, np.int32), np.full(20, divisor, np.int32)]
    parameters = parameters_of(arrays)
    outputs = [create(op, parameters, {}).output(0) for op in ("Div", "Mod")]
    quotient, rest = run(segment_of(parameters, outputs)[0], arrays)
    if divisor == 0:
        assert not quotient.any()
        assert not rest.any()
    else:
        exact = int(numerator / divisor)
        assert (quotient == np.int64(exact).astype(np.int32)).all()
        assert (rest == numerator % divisor).all()


# -- groups ---------------------------------------------------------------------------------------------------


def test_a_chain_is_one_step_and_keeps_what_is_read_elsewhere() -> None:
    arrays = [random_values(f32, 5, 40), random_values(f32, 40, seed=1)]
    x, w = parameters_of(arrays)
    product = ops.Mul(x, w)
    total = ops.Add(product, Constant(np.float32(0.5)))
    result = ops.Relu(ops.Sub(total, x))
    outputs = [result.output(0), product.output(0)]
    segment, items = segment_of([x, w], outputs)
    assert items == [("Mul", "Add", "Sub", "Relu")]
    assert len(segment.plan.steps) == 1
    assert_equals_reference([x, w], outputs, arrays)


def test_a_mask_of_several_types_is_one_step() -> None:
    arrays = [random_values(i64, 1, 1, 1, 12) % 2, random_values(f32, 2, 3, 12, 12)]
    mask, scores = parameters_of(arrays)
    wide = ops.Cast(mask, to=f32.onnx)
    low = ops.Mul(ops.Sub(Constant(np.float32(1)), wide), Constant(np.float32(np.finfo(np.float32).min)))
    outputs = [ops.Add(scores, low).output(0)]
    segment, items = segment_of([mask, scores], outputs)
    assert items == [("Cast", "Sub", "Mul"), ("Add",)]
    assert len(segment.plan.steps) == 2
    assert_equals_reference([mask, scores], outputs, arrays)


def test_what_runs_in_between_is_not_jumped_over() -> None:
    arrays = [random_values(f32, 30)]
    (x,) = parameters_of(arrays)
    first = ops.Relu(x)
    between = ops.Identity(first)
    outputs = [ops.Add(ops.Neg(between), first).output(0)]
    _, items = segment_of([x], outputs)
    assert items == [("Relu",), ("Identity",), ("Neg", "Add")]
    assert_equals_reference([x], outputs, arrays)


def test_groups_never_wait_for_each_other() -> None:
    # {a, c} and {b, d} could each run as one, but neither before the other.
    class Joining(IdentityLowering):
        def group_key(self, spec: OperatorSpec) -> object:
            return 0

    table: LoweringTable[Joining] = LoweringTable()
    table.lowers("Sum")(Joining)
    table.lowers("Max")(Joining)
    x = Parameter(f32, [3], "x")
    a, b = ops.Sum(x), ops.Max(x)
    c, d = ops.Sum(a, b), ops.Max(a, b)
    items = group_nodes([a, b, c, d], [c.output(0), d.output(0)], Decisions(table))
    assert [item.nodes for item in items] == [(b,), (a, c), (d,)]


def test_a_long_chain_is_cut() -> None:
    arrays = [random_values(f32, 64)]
    (x,) = parameters_of(arrays)
    value: Any = x
    for _ in range(100):
        value = ops.Add(ops.Mul(value, Constant(np.float32(0.9))), x)
    _, items = segment_of([x], value.outputs)
    assert 10 < len(items) < 30
    assert_equals_reference([x], value.outputs, arrays)


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = [(3, 20, 5, 4), (20, 1, 1), (3, 20, 1, 1), (3, 1, 5, 4)]
    arrays = [random_values(f32, *shape, seed=index) for index, shape in enumerate(shapes)]
    parameters = parameters_of(arrays)
    values: list[Output] = [parameter.output(0) for parameter in parameters]
    for _ in range(15):
        a, b = (values[int(i)] for i in random.integers(0, len(values), 2))
        match random.integers(0, 6):
            case 0:
                node = ops.Identity(a)
            case 1:
                node = ops.Tanh(a)
            case 2:
                node = ops.Where(ops.Less(a, b), a, b)
            case 3:
                node = ops.Mul(a, Constant(np.float32(0.5)))
            case _:
                node = ops.Sub(a, b)
        values.append(node.output(0))
    outputs = list(dict.fromkeys([values[-1], *(values[int(i)] for i in random.integers(4, len(values), 2))]))
    assert_equals_reference(parameters, outputs, arrays)
    with np.errstate(all="ignore"):
        expected = evaluate_model(Model(outputs, parameters, name="test"), arrays)
    blocked, _ = segment_of(parameters, outputs, Layout.BLOCKED)
    for want, got in zip(expected, run(blocked, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# -- blocked maps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 32])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pixels", [(1, 1), (7, 7), (20, 30)])
def test_blocked_maps(channels: int, batch: int, pixels: tuple[int, int]) -> None:
    shapes = [
        (batch, channels, *pixels), (batch, channels, *pixels), (batch, channels, 1, 1), (1, channels, 1, 1),
        (batch, 1, *pixels), (1, 1, *pixels), pixels, (1,),
    ]  # fmt: skip
    arrays = [random_values(f32, *shape, seed=index) for index, shape in enumerate(shapes)]
    parameters = parameters_of(arrays)
    value: Any = parameters[0]
    for each in parameters[1:]:
        value = ops.Add(ops.Mul(value, Constant(np.float32(0.75))), each)
    for shape in [(channels, 1, 1), (1, channels, *pixels), pixels, (1, 1, 1)]:
        value = ops.Sub(value, Constant(random_values(f32, *shape, seed=9)))
    outputs = [value.output(0)]
    segment, items = segment_of(parameters, outputs, Layout.BLOCKED)
    assert len(items) == 2
    kernels = [step.kernel for step in segment.plan.steps]
    assert "to_blocked_f32" in kernels
    assert kernels[-1] == "from_blocked_f32"
    (got,) = run(segment, arrays)
    (want,) = evaluate_model(Model(outputs, parameters, name="test"), arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_maps_that_cannot_be_blocked_are_plain() -> None:
    for shapes in ([(2, 20, 4, 4), (20, 1, 1)], [(20, 4), (20, 4)]):
        arrays = [random_values(f32, *shape) for shape in shapes]
        parameters = parameters_of(arrays)
        outputs = ops.Add(*parameters).outputs
        segment, _ = segment_of(parameters, outputs, Layout.BLOCKED)
        assert [step.kernel for step in segment.plan.steps] == ["elementwise"]


def test_memory_is_reused_where_a_value_dies() -> None:
    arrays = [random_values(f32, 4096)]
    (x,) = parameters_of(arrays)
    first = ops.Relu(x)
    second = ops.Neg(ops.Identity(first))
    outputs = [ops.Exp(ops.Identity(second)).output(0)]
    segment, items = segment_of([x], outputs)
    assert items == [("Relu",), ("Identity",), ("Neg",), ("Identity",), ("Exp",)]
    assert segment.plan.arena_bytes == 4096 * 4
    assert_equals_reference([x], outputs, arrays)


# -- what is refused ------------------------------------------------------------------------------------------


def test_refusals() -> None:
    def cause(node: Node) -> str | None:
        refused = decisions().refusal(node)
        return None if refused is None else refused.cause

    x, texts = Parameter(f32, [2, 3], "x"), Parameter(string, [2, 3], "texts")
    assert cause(ops.Cast(texts, to=f32.onnx)) == "element type"
    assert cause(ops.Cast(x, to=string.onnx)) == "element type"
    assert cause(ops.Relu(Parameter(f32, [1] * 9, "deep"))) == "rank"
    assert cause(ops.Relu(Parameter(f32, PartialShape.dynamic(), "unknown"))) == "dynamic shape"
    assert cause(ops.create("Sum", [x] * 40, {})) == "op"
    assert cause(ops.Relu(Parameter(f32, [-1, -1], "dynamic"))) is None
    assert cause(ops.Dropout(x)) is None
    assert cause(ops.Dropout(x, None, Constant(np.array(True)))) == "attribute"


def test_kernels_have_the_activations_that_operators_declare() -> None:
    rows = {name for name, row in pointwise_functions().items() if row.is_activation}
    assert rows == {*ACTIVATIONS} - {"Relu"}  # a Clip
    for name, parameters in ACTIVATIONS.items():
        attributes = activation_attributes(Activation(name, (0.5, 0.75)[: len(parameters)]))
        assert attributes["activation"] in codes("Activation")
