"""NonMaxSuppression, NonZero, Compress and Unique on kernels: results whose lengths an inference counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from engine import Core, ops
from engine.errors import EngineError, InputError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}


def compiled(op_type: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int, fixed: bool) -> Any:
    """The network of one node, whose inputs are all inputs of the network, and the node."""
    parameters = [
        None if x is None else Parameter(
            ElementType.from_numpy(x.dtype), PartialShape(x.shape if fixed else [-1] * x.ndim), f"x{index}"
        )
        for index, x in enumerate(inputs)
    ]  # fmt: skip
    node = ops.create(op_type, parameters, attributes, num_outputs=outputs)
    model = Model(node.outputs, [each for each in parameters if each is not None], name="counted")
    return Core().compile_model(model, "CPU", NATIVE), node


def run(op_type: str, *inputs: Array | None, outputs: int = 1, fixed: bool = True, **attributes: Any) -> list[Array]:
    """The results, which equal the evaluation's."""
    network, node = compiled(op_type, list(inputs), attributes, outputs, fixed)
    found = list(network([x for x in inputs if x is not None]).values())
    for got, wanted in zip(found, ops.evaluate(node, list(inputs)), strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)
    return found


def of_onnxruntime(op_type: str, inputs: list[Array], outputs: int = 1, **attributes: Any) -> list[Array]:
    given, made = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, given, made, **attributes)], "peer",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(given, inputs, strict=True)
        ],
        [onnx.ValueInfoProto(name=name) for name in made],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(given, inputs, strict=True))))


def detections(rng: np.random.Generator, batches: int, classes: int, count: int) -> tuple[Array, Array]:
    boxes = rng.uniform(0, 1, (batches, count, 4)).astype(np.float32)
    return boxes, rng.choice(np.linspace(0, 1, 13, dtype=np.float32), (batches, classes, count))


@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("centre", [0, 1])
def test_boxes(count: int, centre: int) -> None:
    rng = np.random.default_rng(count)
    boxes, scores = detections(rng, 2, 3, count)
    for limit, overlap, least in ((0, 0.5, 0.1), (3, 0.3, 0.0), (1000, 0.45, 0.5), (1000, 0.0, 2.0), (50, 1.0, -1.0)):
        given = [boxes, scores, np.array([limit]), np.float32([overlap]), np.float32([least])]
        (found,) = run("NonMaxSuppression", *given, center_point_box=centre)
        np.testing.assert_array_equal(found, of_onnxruntime("NonMaxSuppression", given, center_point_box=centre)[0])


def test_boxes_of_any_number_and_limit() -> None:
    """One network: other numbers of boxes, and limits, which are values that plans are made for."""
    rng = np.random.default_rng(3)
    given: list[Array | None] = [*detections(rng, 1, 2, 9), np.array(4), None, np.array(0.2, np.float32)]
    network, node = compiled("NonMaxSuppression", given, {}, 1, fixed=False)
    for count, limit in ((9, 4), (40, 4), (40, 7), (0, 7), (11, 0), (11, 2**62)):
        boxes, scores = detections(rng, 1, 2, count)
        found = network([boxes, scores, np.array(limit), given[4]])[0]
        (wanted,) = ops.evaluate(node, [boxes, scores, np.array(limit), None, given[4]])
        np.testing.assert_array_equal(found, wanted)


def test_a_ratio_that_is_none() -> None:
    boxes, scores = detections(np.random.default_rng(0), 1, 1, 3)
    for overlap in (1.5, -0.1, np.nan):
        with pytest.raises(EngineError, match=r"iou_threshold is .*; expected 0\.\.1"):
            run("NonMaxSuppression", boxes, scores, np.array([3]), np.float32([overlap]))


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint16, np.int64, np.bool_])
def test_places_of_what_is_not_zero(dtype: Any, fixed: bool) -> None:
    rng = np.random.default_rng(1)
    for shape in ((), (0,), (2, 0), (5,), (3, 4), (2, 3, 1, 5), (40_000,)):
        x = rng.integers(0, 2, shape).astype(dtype)
        (found,) = run("NonZero", x, fixed=fixed)
        if shape:
            np.testing.assert_array_equal(found, np.nonzero(x))


def test_zeros_with_a_sign_and_nan() -> None:
    x = np.array([0.0, -0.0, np.nan, -1.0, np.inf], np.float32)
    assert run("NonZero", x)[0].tolist() == of_onnxruntime("NonZero", [x])[0].tolist() == [[2, 3, 4]]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_slices_that_are_chosen(axis: int | None, fixed: bool) -> None:
    rng = np.random.default_rng(2)
    attributes = {} if axis is None else {"axis": axis}
    for dtype in (np.float32, np.int8, np.float64, np.int16):
        x = rng.integers(0, 100, (6, 5, 7)).astype(dtype)
        for count in (0, 3, 5):
            condition = rng.random(count) < 0.6
            (found,) = run("Compress", x, condition, fixed=fixed, **attributes)
            if count and dtype is np.float32:
                np.testing.assert_array_equal(found, of_onnxruntime("Compress", [x, condition], **attributes)[0])


def test_a_condition_beyond_the_data() -> None:
    x = np.arange(3, dtype=np.float32)
    assert run("Compress", x, np.array([True, False, True, False]), axis=0)[0].tolist() == [0, 2]
    with pytest.raises(InputError, match="3"):
        run("Compress", x, np.array([True, False, True, True]), axis=0)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_different_elements(axis: int | None, is_sorted: int, fixed: bool) -> None:
    rng = np.random.default_rng(4)
    attributes = {"sorted": is_sorted} | ({} if axis is None else {"axis": axis})
    for dtype in (np.float32, np.float64, np.int64, np.int8, np.uint16, np.bool_):
        for shape in ((1, 1, 1), (6, 4, 3), (3, 200, 1)):
            x = rng.integers(0, 3, shape).astype(dtype)
            found = run("Unique", x, outputs=4, fixed=fixed, **attributes)
            if dtype in (np.float32, np.int64):
                for got, wanted in zip(found, of_onnxruntime("Unique", [x], 4, **attributes), strict=True):
                    np.testing.assert_array_equal(got, wanted)
    run("Unique", np.zeros((0, 3), np.float32), outputs=4, fixed=fixed)


def test_different_reals() -> None:
    x = np.array([np.nan, 0.0, -np.inf, -0.0, np.nan, 5.0, -5.0, 1e-42], np.float32)
    values, first, inverse, counts = run("Unique", x, outputs=4)
    np.testing.assert_array_equal(values, np.array([-np.inf, -5, 0, 1e-42, 5, np.nan], np.float32))
    assert (first.tolist(), counts.tolist()) == ([2, 6, 1, 7, 5, 0], [1, 1, 2, 1, 1, 2])
    assert inverse.tolist() == [5, 2, 0, 2, 5, 4, 1, 3]


def test_outputs_that_are_left_out() -> None:
    x = Parameter(ElementType.from_numpy(np.dtype(np.int64)), PartialShape([9]), "x")
    node = ops.create("Unique", [x], {}, num_outputs=4)
    network = Core().compile_model(Model([node.output(3), node.output(1)], [x], name="counts"), "CPU", NATIVE)
    counts, first = network([np.array([5, 3, 5, 5, 1, 3, 9, 9, 9])]).values()
    assert (counts.tolist(), first.tolist()) == ([1, 2, 3, 3], [4, 1, 0, 6])


def test_nodes_that_read_counted_results() -> None:
    """As detection models do: the boxes of what was selected."""
    rng = np.random.default_rng(5)
    boxes, scores = detections(rng, 1, 2, 50)
    f32 = ElementType.from_numpy(boxes.dtype)
    given = [Parameter(f32, PartialShape(x.shape), name) for x, name in ((boxes, "boxes"), (scores, "scores"))]
    limits = [Constant(np.array([8])), Constant(np.float32([0.3])), Constant(np.float32([0.2]))]
    chosen = ops.create("NonMaxSuppression", [*given, *limits], {})
    places = ops.create("Gather", [chosen, Constant(np.array([0, 2]))], {"axis": 1})
    result = ops.create("GatherND", [given[0], places], {})
    network = Core().compile_model(Model([result.output(0)], given, name="detection"), "CPU", NATIVE)
    for _ in range(4):
        boxes, scores = detections(rng, 1, 2, 50)
        found = of_onnxruntime("NonMaxSuppression", [boxes, scores, *(each.data for each in limits)])[0]
        np.testing.assert_array_equal(network([boxes, scores])[0], boxes[found[:, 0], found[:, 2]])


def test_a_profile_names_the_node() -> None:
    x = Parameter(ElementType.from_numpy(np.dtype(np.float32)), PartialShape([9]), "x")
    node = ops.create("NonZero", [x], {}, friendly_name="places")
    network = Core().compile_model(Model(node.outputs, [x], name="profile"), "CPU", NATIVE | {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer([np.ones(9, np.float32)])
    assert [(each.name, each.op_type, each.status) for each in request.profiling_info.nodes] == [
        ("places", "NonZero", "native")
    ]
