"""What breaks if these fail: models with loops and branches get wrong results, are slow, or cannot be stopped."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter
from engine.errors import Cancelled, DeadlineExceeded, EngineError, InputError, OutOfMemoryError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, boolean, f16, f32, i64
from engine.onnx import model_to_proto
from engine.plugin_api import SupportLevel

Array = NDArray[Any]
Build = Callable[[Output, Output, Sequence[Output], Sequence[Output]], tuple[Sequence[Any], Sequence[Any]]]
"""From the trip, the condition, the carried and the captured values: [condition, *carried] and what is stacked."""


def loop(
    shapes: Sequence[Sequence[int | str]],
    build: Build,
    *,
    captured: Sequence[Output] = (),
    trips: Any = "input",
    condition: Any = True,
) -> tuple[Model, Node]:
    """A model of one Loop over inputs x0, x1, ...; `trips` is "input", a number or None."""
    condition = Constant(True, boolean) if condition is True else condition
    inputs = [Parameter(f32, shape, f"x{index}") for index, shape in enumerate(shapes)]
    m = Parameter(i64, [], "m")
    count = m if trips == "input" else None if trips is None else Constant(trips, i64)
    own = [each.node for each in captured if isinstance(each.node, Parameter)]
    node = repeated("Loop", [count, condition, *inputs], shapes, build, captured)
    parameters = [*([m] if trips == "input" else []), *inputs, *own]
    if isinstance(condition, Parameter):
        parameters.append(condition)
    return Model([Result(value, f"y{i}") for i, value in enumerate(node.outputs)], parameters), node


def repeated(
    op_type: str, inputs: Sequence[Any], shapes: Sequence[Any], build: Build, captured: Sequence[Output] = ()
) -> Node:
    trip, go = Parameter(i64, [], "i"), Parameter(boolean, [], "go")
    carried = [Parameter(f32, shape, f"c{index}") for index, shape in enumerate(shapes)]
    captures = [Parameter(value.element_type, value.shape, f"k{index}") for index, value in enumerate(captured)]
    states, stacked = build(
        trip.output(0), go.output(0), [c.output(0) for c in carried], [c.output(0) for c in captures]
    )
    results = [Result(value, f"r{index}") for index, value in enumerate([*states, *stacked])]
    body = Model(results, [trip, go, *carried], captures=captures, name="body")
    return ops.create(op_type, [*inputs, *captured], {"body": body}, num_outputs=len(results) - 1, friendly_name="loop")


def values(*shapes: Sequence[int], seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {f"x{i}": random.uniform(-1, 1, shape).astype(np.float32) for i, shape in enumerate(shapes)}


def is_native(model: Model) -> bool:
    """Whether the native core runs all iterations, and the query says so."""
    network = Core().compile_model(model, "CPU")
    answer = Core().query_model(model, "CPU").nodes["loop"]
    assert (answer.level is SupportLevel.NATIVE) == (not network.get_metric("REFERENCE_STEPS"))
    program = network._implementation.program if hasattr(network, "_implementation") else network.program
    return any(getattr(each.segment, "native", None) is not None for each in program.segments)


def assert_like_others(model: Model, feeds: dict[str, Any], *, peer: bool = True) -> list[Array]:
    """The outputs on CPU, also after export, equal the reference's and onnxruntime's."""
    names = [parameter.friendly_name for parameter in model.parameters]
    expected = ops.evaluate_model(model, [feeds[name] for name in names])
    network = Core().compile_model(model, "CPU")
    stream = io.BytesIO()
    network.export_model(stream)
    imported = Core().import_model(stream.getvalue(), "CPU")
    found = []
    for each in (network, network, imported):
        result = each(feeds)
        found = [result[port.name] for port in each.outputs]
        check(found, expected)
    if peer:
        proto = model_to_proto(model)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        check(found, session.run(None, feeds))
    return found


def check(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        # Sums and products of a few dozen iterations of values below 1.
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def halve(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    c = carried[0]
    return [ops.Identity(go), ops.Add(ops.Mul(c, Constant(np.float32(0.5))), Constant(np.float32(1)))], [c]


def until_small(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    """Halves the value until its largest element is below 0.01."""
    half = ops.Mul(carried[0], Constant(np.float32(0.5)))
    large = ops.Greater(ops.ReduceMax(ops.Abs(half), keepdims=0), Constant(np.float32(0.01)))
    return [large, half], [half]


@pytest.mark.parametrize("trips", [0, 1, 2, 7, -3])
@pytest.mark.parametrize("build", [halve, until_small])
def test_numbers_of_iterations(build: Build, trips: int) -> None:
    model, _ = loop([[3, 4]], build)
    assert is_native(model)
    found = assert_like_others(model, {"m": np.array(trips), **values([3, 4])})
    assert found[1].shape == (max(0, min(trips, 7)), 3, 4)


def test_without_a_number_of_iterations_the_condition_ends_the_loop() -> None:
    model, _ = loop([[5]], until_small, trips=None)
    assert is_native(model)
    assert_like_others(model, values([5]))


@pytest.mark.parametrize("shape", [[5], ["n"]], ids=["native", "by length"])
def test_without_a_condition_the_number_of_iterations_ends_the_loop(shape: list[Any]) -> None:
    """The body's condition is ignored, and reads as true; onnxruntime and onnx.reference end the loop by it."""

    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        (small, half), _ = until_small(trip, go, carried, captured)
        return [ops.And(small, go), half], [ops.Where(go, half, carried[0])]

    for trips in (0, 1, 20):
        model, _ = loop([shape], build, condition=None)
        given = values([5])
        found = assert_like_others(model, {"m": np.array(trips), **given}, peer=False)
        expected = given["x0"] * np.float32(0.5) ** np.arange(1, trips + 1, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(found[1], expected)
        np.testing.assert_array_equal(found[0], expected[-1] if trips else given["x0"])
    assert shape == ["n"] or is_native(model)


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("condition", [None, True])
def test_loops_that_only_stack(condition: bool | None, captured: bool) -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        square = ops.Cast(ops.Mul(trip, trip), to=f32)
        return [go], [square, *(ops.Add(square, each) for each in captured)]

    outer = [Parameter(f32, [3], "k").output(0)] if captured else []
    model, _ = loop([], build, captured=outer, condition=condition)
    for trips in (0, 4):
        feeds = {"m": np.array(trips), **({"k": np.float32([1, 2, 3])} if captured else {})}
        found = assert_like_others(model, feeds)
        np.testing.assert_array_equal(found[0], np.arange(trips) ** 2)


@pytest.mark.parametrize("first", [True, False])
def test_the_condition_may_be_false_at_the_start(first: bool) -> None:
    model, _ = loop([[2, 2]], halve, condition=Parameter(boolean, [], "first"))
    found = assert_like_others(model, {"m": np.array(3), "first": np.array(first), **values([2, 2])})
    assert found[1].shape == (3 if first else 0, 2, 2)


def delay_line(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    """Values that move on by one place in each iteration, including the trip; most are not computed."""
    a, b, c, d = carried
    moved = ops.Add(a, ops.Cast(trip, to=f32))
    return [go, moved, a, b, c], [d, a, d]


def swap(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    a, b = carried
    return [go, b, a], [ops.Sub(a, b), b]


def repeat(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    """One value that is carried twice and stacked twice."""
    total = ops.Add(carried[0], carried[1])
    half = ops.Mul(total, Constant(np.float32(0.5)))
    return [go, half, half], [half, half, total]


def captured_as_state(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
    """The second value is the captured one after the first iteration; a constant is also carried."""
    a, _, _ = carried
    return [go, ops.Add(a, captured[0]), captured[0], Constant(np.full([2], 3, np.float32))], [captured[0]]


@pytest.mark.parametrize("trips", [0, 1, 2, 5, 12])
@pytest.mark.parametrize(("build", "count"), [(delay_line, 4), (swap, 2), (repeat, 2)])
def test_values_that_are_passed_on(build: Build, count: int, trips: int) -> None:
    model, _ = loop([[2]] * count, build)
    assert is_native(model)
    assert_like_others(model, {"m": np.array(trips), **values(*[[2]] * count)})


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_captured_values_and_constants_become_state(trips: int) -> None:
    outer = Parameter(f32, [2], "outer")
    model, _ = loop([[2]] * 3, captured_as_state, captured=[outer.output(0)])
    assert is_native(model)
    feeds = {"m": np.array(trips), "outer": np.array([4, 5], np.float32), **values([2], [2], [2])}
    assert_like_others(model, feeds)


def test_constants_are_stacked_into_arrays_of_any_alignment() -> None:
    table = Constant(np.arange(16, dtype=np.float32))
    model, _ = loop([[16]], lambda trip, go, carried, captured: ([go, ops.Sin(carried[0])], [table]))
    assert is_native(model)
    network = Core().compile_model(model, "CPU")
    for trips in range(1, 12):
        found = network({"m": np.array(trips), **values([16])})["y1"]
        np.testing.assert_array_equal(found, np.tile(table.data, (trips, 1)))


def test_the_number_of_the_iteration_can_be_carried() -> None:
    """It is overwritten by the next iteration, in which the last one is still read."""
    m, start = Parameter(i64, [], "m"), Parameter(i64, [], "s")
    trip, go, last = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(i64, [], "last")
    body = Model([Result(v, f"r{i}") for i, v in enumerate((go, trip, ops.Sub(trip, last)))], [trip, go, last])
    node = ops.create("Loop", [m, None, start], {"body": body}, num_outputs=2, friendly_name="loop")
    model = Model([Result(node.output(0), "y0"), Result(node.output(1), "y1")], [m, start])
    # onnxruntime 1.31 carries the number of the next iteration.
    found = assert_like_others(model, {"m": np.array(5), "s": np.array(-4)}, peer=False)
    assert found[0] == 4
    assert found[1].tolist() == [4, 1, 1, 1, 1]


@pytest.mark.parametrize("shape", [[], [0], [2, 0, 3], [1]])
def test_scalars_and_empty_tensors(shape: list[int]) -> None:
    model, _ = loop([shape], halve)
    assert is_native(model)
    for trips in (0, 3):
        assert_like_others(model, {"m": np.array(trips), **values(shape)})


def test_weights_that_a_body_captures_are_packed_once_and_kept_in_no_other_form() -> None:
    weights = Constant(np.random.default_rng(1).uniform(-0.1, 0.1, (96, 96)).astype(np.float32))

    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        return [go, ops.Tanh(ops.MatMul(carried[0], captured[0]))], []

    model, _ = loop([[8, 96]], build, captured=[weights.output(0)])
    assert is_native(model)
    assert_like_others(model, {"m": np.array(3), **values([8, 96])})
    stream = io.BytesIO()
    Core().compile_model(model, "CPU").export_model(stream)
    assert len(stream.getvalue()) < 1.5 * weights.data.nbytes


# -- Scan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_axis", [0, 1, -1])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("is_passed", [True, False])
def test_scan_axes_and_directions(in_axis: int, out_axis: int, directions: tuple[int, int], is_passed: bool) -> None:
    shape = [3, 4, 5]
    element = [length for axis, length in enumerate(shape) if axis != in_axis % 3]
    state, x = Parameter(f32, element, "x0"), Parameter(f32, shape, "x1")
    s, e = Parameter(f32, element, "s"), Parameter(f32, element, "e")
    total, passed = ops.Add(s, e), e if is_passed else ops.Abs(e)
    body = Model([Result(v, f"r{i}") for i, v in enumerate((total, ops.Neg(total), passed))], [s, e])
    attributes = {
        "body": body, "num_scan_inputs": 1, "scan_input_axes": (in_axis,), "scan_input_directions": (directions[0],),
        "scan_output_axes": (out_axis, 0), "scan_output_directions": (directions[1], 0),
    }  # fmt: skip
    node = ops.create("Scan", [state, x], attributes, num_outputs=3, friendly_name="loop")
    model = Model([Result(value, f"y{i}") for i, value in enumerate(node.outputs)], [state, x])
    assert is_native(model)
    assert_like_others(model, values(element, shape), peer=not is_passed)  # onnxruntime 1.31 stacks zeros then


@pytest.mark.parametrize("lengths", [[None, None], ["a", "b"], [4, None], [4, 1]])
def test_what_a_scan_over_nothing_stacks_does_not_depend_on_what_the_model_states(lengths: list[Any]) -> None:
    state, x = Parameter(f32, lengths, "x0"), Parameter(f32, [None, *lengths], "x1")
    s, e = Parameter(f32, lengths, "s"), Parameter(f32, lengths, "e")
    total = ops.Add(s, e)
    flat = ops.Reshape(total, ops.Concat(ops.Shape(total), Constant([1]), axis=0))
    target = Parameter(i64, [2], "t")
    parts = [total, flat, ops.NonZero(total), ops.Reshape(total, target)]
    body = Model([Result(value, f"r{i}") for i, value in enumerate((total, *parts))], [s, e], captures=[target])
    attributes = {"body": body, "num_scan_inputs": 1, "scan_output_axes": (1, 0, -1, 0)}
    node = ops.create("Scan", [state, x, Constant([2, -1])], attributes, num_outputs=5, friendly_name="loop")
    model = Model([Result(value, f"y{i}") for i, value in enumerate(node.outputs)], [state, x])
    found = assert_like_others(model, values([4, 1], [0, 4, 1]), peer=False)  # onnxruntime 1.32 refuses no steps
    assert [each.shape for each in found] == [(4, 1), (4, 0, 1), (0, 4, 1, 1), (2, 0, 0), (0, 2, 2)]


def test_what_a_loop_without_iterations_stacks() -> None:
    """A carried value that grows has another length in each iteration: the stack has the first one's."""

    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        return [go, ops.Concat(carried[0], carried[0], axis=0)], [ops.Concat(carried[0], carried[0], axis=0)]

    model, _ = loop([["n"]], build)
    found = assert_like_others(model, {"m": np.array(0), **values([3])}, peer=False)  # it gives zeros for "n"
    assert [each.shape for each in found] == [(3,), (0, 6)]


def test_scan_over_nothing() -> None:
    state, x = Parameter(f32, [2], "x0"), Parameter(f32, [0, 2], "x1")
    s, e = Parameter(f32, [2], "s"), Parameter(f32, [2], "e")
    total = ops.Add(s, e)
    node = ops.create(
        "Scan", [state, x], {"body": Model([Result(total, "a"), Result(total, "b")], [s, e]), "num_scan_inputs": 1},
        num_outputs=2, friendly_name="loop",
    )  # fmt: skip
    model = Model([Result(value, f"y{i}") for i, value in enumerate(node.outputs)], [state, x])
    found = assert_like_others(model, values([2], [0, 2]), peer=False)
    assert found[1].shape == (0, 2)


# -- If, and bodies in bodies -----------------------------------------------------------------------------------


def choice(condition: Output, value: Output, then: Callable[[Output], Any], other: Callable[[Output], Any]) -> Node:
    branches = {}
    for name, build in (("then_branch", then), ("else_branch", other)):
        captured = Parameter(value.element_type, value.shape, name)
        branches[name] = Model([Result(build(captured.output(0)))], captures=[captured])
    return ops.create("If", [condition, value, value], branches, friendly_name="choice")


@pytest.mark.parametrize("condition", [True, False])
def test_branches_of_different_shapes(condition: bool) -> None:
    c, x = Parameter(boolean, [], "c"), Parameter(f32, [1, 3], "x0")
    node = choice(
        c.output(0), x.output(0), lambda v: ops.Squeeze(v, Constant([0], i64)), lambda v: ops.Concat(v, v, axis=0)
    )
    model = Model([Result(ops.Relu(node), "y0")], [c, x])
    assert Core().query_model(model, "CPU").nodes["choice"].level is SupportLevel.NATIVE
    assert_like_others(model, {"c": np.array(condition), **values([1, 3])}, peer=False)


@pytest.mark.parametrize("trips", [0, 1, 6])
def test_a_branch_in_a_loop(trips: int) -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        positive = ops.Greater(ops.ReduceSum(carried[0], keepdims=0), Constant(np.float32(0)))
        doubled = ops.Mul(carried[0], Constant(np.float32(-1.25)))
        chosen = choice(positive.output(0), doubled.output(0), lambda v: v, lambda v: ops.Neg(v))
        return [go, chosen], [chosen, doubled]

    model, _ = loop([[3]], build)
    assert is_native(model)
    assert_like_others(model, {"m": np.array(trips), **values([3])})


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("inner", [0, 3])
def test_a_loop_in_a_loop(trips: int, inner: int) -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        start = ops.Mul(carried[0], Constant(np.float32(0.5)))
        node = repeated("Loop", [Constant(inner, i64), None, start], [[2]], halve)
        return [go, node.output(0)], [node.output(1), node.output(0)]

    model, _ = loop([[2]], build)
    assert is_native(model)
    assert_like_others(model, {"m": np.array(trips), **values([2])})


def test_an_inner_loop_of_a_number_of_iterations_that_varies() -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        return [go, repeated("Loop", [trip, go, carried[0]], [[2]], lambda *a: (halve(*a)[0], [])).output(0)], []

    model, _ = loop([[2]], build)
    assert is_native(model)
    assert_like_others(model, {"m": np.array(4), **values([2])})


# -- what the native core does not run on its own ------------------------------------------------------------------


def test_a_value_that_grows() -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        grown = ops.Concat(carried[0], ops.ReduceSum(carried[0], Constant([0], i64), keepdims=1), axis=0)
        return [go, ops.Mul(grown, Constant(np.float32(0.5)))], [ops.ReduceMax(grown, keepdims=0)]

    model, _ = loop([["N", 2]], build)
    for trips in (0, 1, 9):
        assert_like_others(model, {"m": np.array(trips), **values([2, 2])})
    network = Core().compile_model(model, "CPU")
    network({"m": np.array(40), **values([2, 2])})
    assert network.get_metric("LOWERED_PLANS") < 20  # families serve the lengths, instead of a plan for each iteration


def test_a_body_with_an_operation_without_a_kernel_runs_in_part_on_the_reference() -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        det = ops.Det(ops.Unsqueeze(carried[0], Constant([1, 2], i64)))
        return [go, ops.Mul(carried[0], Constant(np.float32(0.5)))], [ops.ReduceMax(det, keepdims=0)]

    model, _ = loop([[3]], build)
    assert not is_native(model)
    answer = Core().query_model(model, "CPU").nodes["loop"]
    assert answer.level is SupportLevel.REFERENCE
    assert "Det" in answer.reason
    assert_like_others(model, {"m": np.array(4), **values([3])})


def test_a_body_that_counts_lengths() -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        unique = ops.create("Unique", [carried[0]], {"sorted": 1}, num_outputs=1)
        return [go, ops.Mul(carried[0], Constant(np.float32(0.5)))], [ops.ReduceMax(unique.output(0), keepdims=0)]

    model, _ = loop([[3]], build)
    assert not is_native(model)  # the native core runs no iterations, but the kernel of each of them
    assert Core().query_model(model, "CPU").nodes["loop"].level is SupportLevel.NATIVE
    assert_like_others(model, {"m": np.array(4), **values([3])})


def test_stored_in_f16() -> None:
    x, m = Parameter(f16, [4], "x0"), Parameter(i64, [], "m")
    trip, go, c = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f16, [4], "c")
    half = ops.Add(ops.Mul(c, Constant(np.float16(0.5))), Constant(np.float16(0.25)))
    body = Model([Result(go), Result(half)], [trip, go, c])
    node = ops.create("Loop", [m, None, x], {"body": body}, num_outputs=1, friendly_name="loop")
    model = Model([Result(node.output(0), "y0")], [m, x])
    assert is_native(model)
    found = Core().compile_model(model, "CPU")({"m": np.array(3), "x0": np.ones(4, np.float16)})["y0"]
    assert found.dtype == np.float16
    assert found.tolist() == [0.5625] * 4


# -- stopping, memory, profiles ------------------------------------------------------------------------------------


def endless() -> Model:
    return loop([[4]], lambda trip, go, carried, captured: ([go, ops.Sin(carried[0])], []))[0]


def test_a_deadline_ends_an_endless_loop() -> None:
    request = Core().compile_model(endless(), "CPU").create_infer_request()
    feeds = {"m": np.array(1 << 60), **values([4])}
    request.start_async(feeds, deadline=0.03)
    with pytest.raises(DeadlineExceeded):
        request.wait()
    feeds["m"] = np.array(1)
    np.testing.assert_allclose(request.infer(feeds)["y0"], np.sin(feeds["x0"]), rtol=1e-6)


def test_a_cancellation_ends_an_endless_loop() -> None:
    request = Core().compile_model(endless(), "CPU").create_infer_request()

    request.start_async({"m": np.array(1 << 60), **values([4])})
    time.sleep(0.05)
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait()


@pytest.mark.parametrize("is_counted", [True, False])
def test_more_than_fits_into_memory_is_an_error(is_counted: bool) -> None:
    model, _ = loop([[4]], halve if is_counted else until_small)
    network = Core().compile_model(model, "CPU")
    if is_counted:
        with pytest.raises(OutOfMemoryError, match="Loop `loop`: its iterations stack"):
            network({"m": np.array(1 << 60), **values([4])})
    else:  # the condition ends it, so nothing is allocated ahead
        assert network({"m": np.array(1 << 60), **values([4])})["y1"].shape == (7, 4)


def test_invalid_data_in_an_iteration_names_the_node() -> None:
    table = Constant(np.arange(4, dtype=np.float32))

    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        return [go, ops.Gather(table, trip, axis=0, friendly_name="look")], []

    model, _ = loop([[]], build)
    network = Core().compile_model(model, "CPU")
    assert network({"m": np.array(4), **values([])})["y0"] == 3
    with pytest.raises(InputError, match=r"Loop `loop`: .*look.*index 4"):
        network({"m": np.array(6), **values([])})


@pytest.mark.parametrize("grows", [False, True])
def test_a_profile_has_the_nodes_of_bodies_once(grows: bool) -> None:
    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        made = ops.Sin(carried[0], friendly_name="sine")
        return [go, ops.Concat(made, made, axis=0, friendly_name="join") if grows else made], []

    model, _ = loop([["N" if grows else 4]], build)
    request = Core().compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer({"m": np.array(5), **values([4])})
    names = [profile.name for profile in request.profiling_info.nodes]
    assert names.count("loop") == names.count("loop/sine") == 1
    assert all(profile.status == "native" for profile in request.profiling_info.nodes)


# -- at random -----------------------------------------------------------------------------------------------------


@st.composite
def loops(draw: st.DrawFn) -> tuple[Model, dict[str, Array]]:
    """A Loop over some values of one shape, with any wiring between what is computed, carried and stacked."""
    shape = draw(st.sampled_from([[], [3], [2, 2]]))
    count = draw(st.integers(1, 3))
    outer = Parameter(f32, shape, "outer")

    def build(trip: Output, go: Output, carried: Sequence[Output], captured: Sequence[Output]) -> Any:
        known = [*carried, captured[0], Constant(np.full(shape, 0.5, np.float32)).output(0)]
        for _ in range(draw(st.integers(0, 4))):
            a, b = (draw(st.sampled_from(known)) for _ in range(2))
            kind = draw(st.sampled_from(["Add", "Mul", "Sin", "If", "Loop"]))
            if kind in ("Add", "Mul"):
                made = getattr(ops, kind)(a, b)
                made = ops.Sin(made)  # bounded
            elif kind == "Sin":
                made = ops.Sin(a)
            elif kind == "If":
                condition = ops.Greater(ops.ReduceSum(a, keepdims=0), Constant(np.float32(0)))
                made = choice(condition.output(0), b, lambda v: ops.Sin(v), lambda v: v)
            else:
                inner = lambda t, g, c, k: ([g, ops.Sin(c[0])], [])  # noqa: E731
                made = repeated("Loop", [Constant(draw(st.integers(0, 2)), i64), None, a], [shape], inner)
            known.append(made.output(0))
        pick = st.sampled_from(known)
        go_on = go
        if draw(st.booleans()):
            go_on = ops.Less(
                ops.ReduceSum(draw(pick), keepdims=0), Constant(np.float32(draw(st.floats(-1, 3, width=16))))
            )
        stacked = [draw(pick) for _ in range(draw(st.integers(0, 2)))]
        return [go_on, *(draw(pick) for _ in range(count))], stacked

    model, _ = loop([shape] * count, build, captured=[outer.output(0)])
    feeds = values(*[shape] * count, seed=draw(st.integers(0, 99)))
    feeds |= {"outer": np.full(shape, -0.25, np.float32), "m": np.array(draw(st.integers(0, 6)))}
    return model, {name: feeds[name] for name in (p.friendly_name for p in model.parameters)}


@given(loops())
@settings(max_examples=25, deadline=None)
def test_any_loop_is_like_the_reference(case: tuple[Model, dict[str, Array]]) -> None:
    model, feeds = case
    assert is_native(model)
    expected = ops.evaluate_model(model, [feeds[p.friendly_name] for p in model.parameters])
    result = Core().compile_model(model, "CPU")(feeds)
    for got, wanted in zip([result[f"y{i}"] for i in range(len(expected))], expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        # The sine of each step damps errors of one rounding; there are a few dozen.
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


# -- forged blobs --------------------------------------------------------------------------------------------------


def forged(model: Model, change: Callable[[onnx.GraphProto], object]) -> bytes:
    """An exported network whose Loop's body was changed; its hashes are right, as a forger can make them."""
    stream = io.BytesIO()
    Core().compile_model(model, "CPU").export_model(stream)
    blob = BlobReader(stream.getvalue())
    proto = onnx.ModelProto.FromString(bytes(blob.section("graph")))
    (loop_node,) = [node for node in proto.graph.node if node.op_type == "Loop"]
    change(next(each.g for each in loop_node.attribute if each.name == "body"))
    writer = BlobWriter(blob.manifest)
    for name in blob.section_names:
        writer.add_section(name, proto.SerializeToString() if name == "graph" else blob.section(name))
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


def resize(port: onnx.ValueInfoProto, length: int) -> None:
    port.type.tensor_type.shape.dim[0].dim_value = length


FORGERIES: dict[str, Callable[[onnx.GraphProto], object]] = {
    "a larger carried value": lambda body: resize(body.input[2], 1 << 20),
    "a smaller carried value": lambda body: resize(body.input[2], 1),
    "a larger result": lambda body: [resize(port, 1 << 20) for port in body.output[1:]],
    "a condition of many": lambda body: body.output[0].CopyFrom(body.output[1]),
    "a result less": lambda body: body.output.pop(),
    "an input less": lambda body: body.input.pop(),
    "another type": lambda body: setattr(body.input[2].type.tensor_type, "elem_type", onnx.TensorProto.DOUBLE),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_body_is_an_error_or_harmless(forgery: str) -> None:
    """No size that a blob states makes a run reach beyond its memory."""
    model, _ = loop([[4]], halve)
    feeds = {"m": np.array(3), **values([4])}
    expected = Core().compile_model(model, "CPU")(feeds)
    try:
        result = Core().import_model(forged(model, FORGERIES[forgery]), "CPU")(feeds)
    except EngineError:
        return
    for port in ("y0", "y1"):
        np.testing.assert_array_equal(result[port], expected[port])


def test_memory_that_runs_out_while_a_loop_stacks_is_an_error() -> None:
    """In a process with little memory: each iteration stacks 4 MiB, and only the condition could end the loop."""
    model, _ = loop([[1 << 20]], until_small)
    proto = model_to_proto(model).SerializeToString()
    code = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from engine import Core\nfrom engine.errors import OutOfMemoryError\n"
        "import onnx\n"
        "network = Core().compile_model(onnx.ModelProto.FromString(sys.stdin.buffer.read()), 'CPU')\n"
        "feeds = {'m': np.array(1 << 60), 'x0': np.full(1 << 20, np.inf, np.float32)}\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)\n"
        "try:\n"
        "    network(feeds)\n"
        "except OutOfMemoryError as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=proto, capture_output=True, check=True, timeout=120)
    assert b"Loop `loop`: its iterations stack more than fits into memory" in done.stdout
