"""NonMaxSuppression: the number of rows of the result is found by the inference, in memory of every kind.

If a case fails here, a detector reports boxes that it should have suppressed, misses some, or gives rows of an earlier
inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import find_devices
from engine_opencl.devices.device_check import MEMORY_KINDS
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import EngineError, InputError, UnsupportedError
from engine.ir import Constant, ElementType, Model, Node, Parameter, Result, f32, i64
from engine.ops import evaluate_model
from engine.plugin_api import ExecutableNetwork, RefusalCause, SupportLevel

Array = NDArray[Any]


@pytest.fixture(params=MEMORY_KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind, which is right on every device whose memory is the host's."""
    device = find_devices()[0]
    if MEMORY_KINDS.index(request.param) < MEMORY_KINDS.index(device.memory_kind):
        pytest.skip(f"{device.facts.name} has memory of the kind `{device.memory_kind}`")
    monkeypatch.setattr(device, "memory_kind", request.param)
    return str(request.param)


def suppressing(
    inputs: Sequence[Array | None], fixed: Sequence[int] = (), lengths: Sequence[Any] | None = None, **attributes: Any
) -> tuple[Node, Model]:
    """A node and its model; `lengths`: of boxes and scores, if they differ from the inputs'."""
    sources: list[Any] = []
    for index, value in enumerate(inputs):
        if value is None or index in fixed:
            sources.append(None if value is None else Constant(value))
        else:
            shape = value.shape if lengths is None or index > 1 else lengths[index]
            sources.append(Parameter(ElementType.from_numpy(value.dtype), shape, f"x{index}"))
    node = ops.create("NonMaxSuppression", sources, attributes)
    return node, Model([Result(node.output(0))], [each for each in sources if isinstance(each, Parameter)])


def check(*inputs: Array | None, fixed: Sequence[int] = (2, 3, 4), **attributes: Any) -> Array:
    """The result, which equals the evaluation's."""
    node, model = suppressing(inputs, fixed, **attributes)
    network = Core().compile_model(model, "OPENCL")
    given = [value for index, value in enumerate(inputs) if value is not None and index not in fixed]
    found: Array = network(given)[0]
    (wanted,) = ops.evaluate(node, list(inputs))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    return found


def detections(random: np.random.Generator, batches: int, classes: int, count: int) -> tuple[Array, Array]:
    """Boxes with corners in any order, and scores, many of them equal."""
    boxes = random.uniform(0, 1, (batches, count, 4)).astype(np.float32)
    return boxes, random.choice(np.linspace(0, 1, 13, dtype=np.float32), (batches, classes, count))


@pytest.mark.parametrize("count", [0, 1, 7, 300])
@pytest.mark.parametrize("centre", [0, 1])
@pytest.mark.parametrize(("fixed", "device"), [((), "cpu"), ((2, 3, 4), "cpu"), ((2, 3, 4), "gpu")])
def test_boxes(count: int, centre: int, fixed: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_devices()[0]
    monkeypatch.setattr(first, "facts", replace(first.facts, kind=device))
    random = np.random.default_rng(count)
    boxes, scores = detections(random, 2, 3, count)
    for limit, overlap, least in ((0, 0.5, 0.1), (3, 0.3, 0.0), (1000, 0.45, 0.5), (2**62, 0.0, 2.0), (50, 1.0, -1.0)):
        given = [boxes, scores, np.array([limit]), np.float32([overlap]), np.float32([least])]
        check(*given, fixed=fixed, center_point_box=centre)


def test_limits_that_are_left_out() -> None:
    boxes, scores = detections(np.random.default_rng(1), 1, 2, 20)
    assert check(boxes, scores).shape == (0, 3)
    check(boxes, scores - np.float32(0.5), np.array(20))
    check(boxes, scores, np.array([[20]]), None, np.float32(0.4))
    check(boxes, scores, np.array(-3), np.float32(0.4))


@pytest.mark.parametrize("centre", [0, 1])
def test_ratios_at_the_threshold(centre: int) -> None:
    """Boxes of whole numbers have few ratios: those of the threshold do not overlap, whatever a device rounds."""
    random = np.random.default_rng(2)
    boxes = random.integers(0, 7, (1, 60, 4)).astype(np.float32)
    scores = random.permutation(60).astype(np.float32).reshape(1, 1, 60)
    for common, together in ((1, 3), (1, 7), (2, 3), (3, 7), (5, 9), (4, 11), (1, 1)):
        overlap = np.float32(common) / np.float32(together)
        for threshold in (overlap, np.nextafter(overlap, np.float32(0))):
            check(boxes, scores, np.array(60), np.float32([threshold]), center_point_box=centre)


def test_numbers_that_are_none() -> None:
    """A NaN exceeds nothing: such a score is not selected, such a box overlaps with none, nor does one without area."""
    random = np.random.default_rng(3)
    boxes, scores = detections(random, 1, 2, 40)
    special = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 1e-30])
    boxes[0, ::3, 1] = random.choice(special, 14)
    boxes[0, 1] = boxes[0, 2] = [0.5, 0.5, 0.5, 0.9]
    scores[0, 0, ::2], scores[0, 1, ::5] = random.choice(special, 20), 0
    scores[0, 1, 1::5] = -0.0
    with np.errstate(all="ignore"):
        for least in (None, -np.inf, 0.0, np.nan):
            check(boxes, scores, np.array(40), np.float32(0.3), None if least is None else np.float32(least))


def test_other_numbers_of_boxes_and_limits(kind: str) -> None:
    """One network, exported and imported: no row of an earlier inference is left."""
    random = np.random.default_rng(4)
    given: list[Array | None] = [*detections(random, 1, 2, 9), np.array(4), None, np.array(0.2, np.float32)]
    node, model = suppressing(given, lengths=[(1, None, 4), (1, 2, None)])
    network, stream = Core().compile_model(model, "OPENCL"), BytesIO()
    network.export_model(stream)
    for each in (network, Core().import_model(stream.getvalue())):
        for count, limit in ((9, 4), (40, 4), (40, 7), (40, 7), (0, 7), (11, 0), (11, 2**62), (9, 4)):
            boxes, scores = detections(random, 1, 2, count)
            found = each([boxes, scores, np.array(limit), given[4]])[0]
            (wanted,) = ops.evaluate(node, [boxes, scores, np.array(limit), None, given[4]])
            np.testing.assert_array_equal(found, wanted)


def network_of(count: int) -> tuple[ExecutableNetwork[Any], list[Array]]:
    """One with the result twice, between other outputs, and its inputs."""
    boxes, scores = detections(np.random.default_rng(5), 1, 2, count)
    node, model = suppressing([boxes, scores, np.array(8), np.float32(0.3)], (2, 3))
    parameters = model.parameters
    outputs = [ops.Neg(parameters[1]).output(0), node.output(0), node.output(0), parameters[0].output(0)]
    results = [Result(output, f"y{index}") for index, output in enumerate(outputs)]
    return Core().compile_model(Model(results, parameters), "OPENCL"), [boxes, scores]


def test_beside_other_outputs(kind: str) -> None:
    network, (boxes, scores) = network_of(30)
    negated, first, second, same = network([boxes, scores]).values()
    (wanted,) = ops.evaluate(suppressing([boxes, scores, np.array(8), np.float32(0.3)])[0], [
        boxes, scores, np.array(8), np.float32(0.3)])  # fmt: skip
    np.testing.assert_array_equal(negated, -scores)
    np.testing.assert_array_equal(first, wanted)
    np.testing.assert_array_equal(second, wanted)
    np.testing.assert_array_equal(same, boxes)


def test_arrays_of_the_user(kind: str) -> None:
    """One of the right length is filled; another is an error, after which the request can be used."""
    network, inputs = network_of(30)
    request = network.create_infer_request()
    wanted = request.infer(inputs)[1].copy()
    array = np.zeros_like(wanted)
    request.set_output_tensor(1, array)
    assert request.infer(inputs)[1] is array
    np.testing.assert_array_equal(array, wanted)
    request.set_output_tensor(1, np.zeros((len(wanted) + 1, 3), np.int64))
    with pytest.raises(InputError):
        request.infer(inputs)
    request.set_output_tensor(1, None)
    np.testing.assert_array_equal(request.infer(inputs)[1], wanted)


def test_a_tensor_on_the_device(kind: str) -> None:
    core = Core()
    boxes, scores = detections(np.random.default_rng(5), 1, 2, 30)
    _, model = suppressing([boxes, scores, np.array(8), np.float32(0.3)], (2, 3))
    context = core.create_context("OPENCL")
    request = core.compile_model(model, context).create_infer_request()
    wanted = request.infer([boxes, scores])[0].copy()
    tensor = context.create_tensor(i64, wanted.shape)
    request.set_output_tensor(0, tensor)
    assert request.infer([boxes, scores])[0] is tensor
    np.testing.assert_array_equal(tensor.to_host(), wanted)


def selection(count: int) -> tuple[Node, list[Parameter], Constant, list[Array]]:
    """A node with boxes and scores of any number, its inputs, a box's columns in the result, and arrays."""
    boxes, scores = detections(np.random.default_rng(6), 2, 3, count)
    x = [Parameter(f32, (2, None, 4), "boxes"), Parameter(f32, (2, 3, None), "scores")]
    node = ops.create(
        "NonMaxSuppression", [*x, Constant(np.array(8)), Constant(np.float32(0.3)), Constant(np.float32(0.2))]
    )
    return node, x, Constant(np.array([0, 2])), [boxes, scores]


def picked(node: Node, x: Sequence[Node], columns: Constant) -> Node:
    return ops.create("GatherND", [x[0], ops.Gather(node, columns, axis=1)])


def labelled(node: Node, x: Sequence[Node], columns: Constant) -> Node:
    """Boxes, scores and classes in a row each, as exporters of detectors write them."""
    column = [ops.Gather(node, Constant(np.array([index])), axis=1) for index in range(3)]
    scores = ops.create("GatherND", [x[1], node])
    rows = [picked(node, x, columns), ops.Unsqueeze(scores, Constant(np.array([1])))]
    return ops.Concat(*rows, ops.Cast(column[1], to=f32.onnx), ops.Cast(column[0], to=f32.onnx), axis=1)


def moved(node: Node, x: Sequence[Node], columns: Constant) -> Node:
    """The rows are scaled, transposed to and fro, cut, and get an axis before them."""
    rows = ops.Transpose(ops.Mul(picked(node, x, columns), Constant(np.float32([2, 3, 4, 5]))), perm=[1, 0])
    sums = ops.ReduceSum(rows, Constant(np.array([0])), keepdims=1)
    cut = ops.Slice(rows, Constant(np.array([1])), Constant(np.array([3])), Constant(np.array([0])))
    return ops.Unsqueeze(ops.Transpose(ops.Div(cut, sums), perm=[1, 0]), Constant(np.array([0])))


@pytest.mark.parametrize("read", [picked, labelled, moved])
def test_what_reads_the_boxes(read: Any, kind: str) -> None:
    """One network, and an imported one, with the result itself as another output; no row of an earlier inference."""
    node, x, columns, _ = selection(1)
    model = Model([Result(read(node, x, columns).output(0), "rows"), Result(node.output(0), "selected")], x)
    network, stream = Core().compile_model(model, "OPENCL"), BytesIO()
    network.export_model(stream)
    for each in (network, Core().import_model(stream.getvalue())):
        for count in (30, 7, 60, 0, 1):
            _, _, _, arrays = selection(count)
            found = each(arrays)
            for got, wanted in zip(found.values(), evaluate_model(model, arrays), strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_rows_beyond_the_selected_ones_are_not_out_of_range() -> None:
    """Only the second sample has boxes, so a table begins there: a row of zeros would address an element before it."""
    node, x, _, (boxes, scores) = selection(30)
    scores[0] = 0
    sample = ops.Squeeze(ops.Gather(node, Constant(np.array([0])), axis=1), Constant(np.array([1])))
    place = ops.Mul(ops.Sub(sample, Constant(1)), Constant(9))
    model = Model([Result(ops.Gather(Constant(np.float32([5])), place).output(0))], x)
    found = Core().compile_model(model, "OPENCL")([boxes, scores])[0]
    np.testing.assert_array_equal(found, evaluate_model(model, [boxes, scores])[0])
    assert 0 < found.size < 48


def test_no_box_is_selected() -> None:
    node, x, columns, (boxes, scores) = selection(20)
    model = Model([Result(labelled(node, x, columns).output(0))], x)
    network = Core().compile_model(model, "OPENCL")
    assert network([boxes, scores - np.float32(2)])[0].shape == (0, 7)
    assert network([boxes, scores])[0].shape[0] > 0


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda node: ops.ReduceMax(node, Constant(np.array([0]))), "ReduceMax `.*` may combine rows"),
        (lambda node: ops.Shape(node), "Shape `.*` may combine rows"),
        (lambda node: ops.Softmax(ops.Cast(node, to=f32.onnx), axis=0), "Softmax `.*` may combine rows"),
        (lambda node: ops.Transpose(node, perm=[1, 0]), "Result `.*` has its rows at axis 1"),
        (lambda node: ops.Add(node, Constant(np.ones((5, 3), np.int64))), "Add `.*` also reads rows of a known number"),
    ],
)
def test_what_combines_boxes_is_left_to_another_device(read: Any, problem: str) -> None:
    """A plan does not know how many rows it would combine: the query says so, and HETERO finds a place."""
    node, x, _, arrays = selection(30)
    model = Model([Result(read(node).output(0))], x)
    refused = Core().query_model(model, "OPENCL").at(SupportLevel.REFUSED)
    assert refused[node.friendly_name].cause is RefusalCause.DYNAMIC_SHAPE
    with pytest.raises(UnsupportedError, match=rf"counts the length of .*, and {problem}"):
        Core().compile_model(model, "OPENCL")
    if "known number" not in problem:
        (wanted,) = evaluate_model(model, arrays)
        np.testing.assert_allclose(Core().compile_model(model, "HETERO:OPENCL,CPU")(arrays)[0], wanted, rtol=1e-5)


def test_limits_that_are_computed_are_refused() -> None:
    boxes, scores = detections(np.random.default_rng(6), 1, 2, 30)
    x = [Parameter(f32, boxes.shape), Parameter(f32, scores.shape)]
    least = ops.ReduceMax(x[1], keepdims=0)
    node = ops.create("NonMaxSuppression", [*x, Constant(np.array(8)), None, least])
    refused = Core().query_model(Model([Result(node)], x), "OPENCL").at(SupportLevel.REFUSED)
    assert refused[node.friendly_name].cause is RefusalCause.CONSTANT


@pytest.mark.parametrize("overlap", [1.5, -0.1, np.nan])
@pytest.mark.parametrize("fixed", [(), (2, 3)])
def test_a_ratio_that_is_none_fails_by_name(overlap: float, fixed: tuple[int, ...]) -> None:
    boxes, scores = detections(np.random.default_rng(0), 1, 1, 3)
    with pytest.raises(EngineError, match=r"NonMaxSuppression `.*`: iou_threshold is .*; expected 0\.\.1"):
        check(boxes, scores, np.array([3]), np.float32([overlap]), fixed=fixed)
