"""Convolutions of three axes and more, deformed ones, Col2Im, GridSample and RoiAlign against other runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}
EPSILON = float(np.finfo(np.float32).eps)


def networks(
    op_type: str,
    inputs: list[Array | None],
    attributes: dict[str, Any],
    constants: tuple[int, ...] = (),
    tail: Any = None,
) -> list[Array]:
    """The results of TEMPLATE and CPU, which must be equal up to the rounding of sums."""
    sources: list[Any] = []
    for index, x in enumerate(inputs):
        if x is None or index in constants:
            sources.append(None if x is None else Constant(x))
        else:
            sources.append(Parameter(ElementType.from_numpy(x.dtype), PartialShape(x.shape), f"x{index}"))
    parameters = [each for each in sources if isinstance(each, Parameter)]
    node = ops.create(op_type, sources, attributes)
    model = Model([(tail or (lambda y: y))(node.output(0))], parameters, name="unrolled")
    given = [x for index, x in enumerate(inputs) if x is not None and index not in constants]
    return [
        Core().compile_model(model, "TEMPLATE")(given)[0],
        Core().compile_model(model, "CPU", NATIVE)(given)[0],
    ]  # fmt: skip


def compare(*args: Any, terms: int, **more: Any) -> Array:
    wanted, found = networks(*args, **more)
    assert found.shape == wanted.shape
    bound = 8 * EPSILON * np.sqrt(terms)
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound * max(1.0, float(np.abs(wanted).max(initial=0))))
    return found


def of_onnxruntime(op_type: str, inputs: list[Array], **attributes: Any) -> Array:
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)], "peer",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, inputs, strict=True)
        ],
        [onnx.ValueInfoProto(name="y")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])


WINDOWS: list[dict[str, Any]] = [
    {},
    {"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [1, 2, 2]},
    {"dilations": [1, 2, 1], "pads": [0, 2, 1, 3, 0, 1]},
]


@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("constants", [(), (1,), (1, 2)])
def test_convolutions_of_three_axes(attributes: dict[str, Any], group: int, constants: tuple[int, ...]) -> None:
    x, w = values(2, 6, 5, 7, 6), values(12, 6 // group, 2, 3, 3, seed=1)
    found = compare("Conv", [x, w, values(12, seed=2)], {"group": group, **attributes}, constants, terms=110)
    compare("Conv", [x, w], {"group": group, **attributes}, tuple(c for c in constants if c < 2), terms=110)
    peer = of_onnxruntime("Conv", [x, w, values(12, seed=2)], group=group, **attributes)
    np.testing.assert_allclose(found, peer, rtol=1e-4, atol=1e-4)


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"strides": [2, 1, 3], "pads": [1, 0, 1, 0, 2, 1]},
    {"strides": [2, 3, 2], "output_padding": [1, 2, 0]},
    {"dilations": [2, 1, 3], "output_shape": [6, 9, 12]},
]


@pytest.mark.parametrize("attributes", TRANSPOSED)
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("constants", [(), (1,), (1, 2)])
def test_transposed_convolutions_of_three_axes(
    attributes: dict[str, Any], group: int, constants: tuple[int, ...]
) -> None:
    x, w = values(2, 6, 4, 5, 3), values(6, 4, 2, 3, 3, seed=1)
    bias = values(4 * group, seed=2)
    compare("ConvTranspose", [x, w, bias], {"group": group, **attributes}, constants, terms=110)
    compare("ConvTranspose", [x, w], {"group": group, **attributes}, terms=110)


def test_many_windows_are_multiplied_in_parts() -> None:
    """Columns of 48 MB and more."""
    x, w = values(2, 8, 12, 64, 64), values(8, 8, 3, 3, 3, seed=1)
    assert compare("Conv", [x, w, values(8, seed=2)], {"pads": [1] * 6}, terms=216).shape == x.shape
    compare("ConvTranspose", [x, w, values(8, seed=2)], {"pads": [1] * 6}, terms=216)


def test_more_axes() -> None:
    x, w = values(1, 3, 3, 4, 3, 5), values(4, 3, 2, 2, 2, 2, seed=1)
    compare("Conv", [x, w], {"strides": [1, 2, 1, 2]}, terms=48)
    compare("ConvTranspose", [x, values(3, 2, 2, 1, 2, 3, seed=1)], {"strides": [1, 2, 1, 2]}, terms=48)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_what_follows_a_convolution_of_three_axes(op_type: str) -> None:
    x, w, bias = values(1, 4, 3, 4, 5), values(4, 4, 3, 3, 3, seed=1), values(4, seed=2)
    for tail in (ops.Relu, ops.HardSwish, lambda y: ops.Relu(ops.Add(y, y)), lambda y: ops.Add(ops.Sigmoid(y), y)):
        compare(op_type, [x, w, bias], {"pads": [1] * 6}, (1, 2), tail=tail, terms=110)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(0, 4, 3, 4, 5), (1, 4, 0, 4, 5), (1, 4, 3, 4, 0)])
def test_no_windows(op_type: str, shape: tuple[int, ...]) -> None:
    inputs: list[Array | None] = [np.zeros(shape, np.float32), values(4, 4, 3, 3, 3, seed=1), values(4, seed=2)]
    compare(op_type, inputs, {"pads": [2] * 6} if op_type == "Conv" else {}, terms=110)


@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deformed_convolutions(group: int, offset_group: int, with_mask: bool) -> None:
    for attributes in ({}, {"pads": [1, 2, 0, 1], "strides": [2, 1]}, {"dilations": [2, 3], "pads": [2, 2, 2, 2]}):
        x, w = values(2, 8, 9, 8), values(6, 8 // group, 3, 2, seed=1)
        given = {"group": group, "offset_group": offset_group, **attributes}
        node = ops.create("Conv", [Constant(x), Constant(w)], {"group": group, **attributes})
        outs = node.output(0).shape.get_shape()[2:]
        offset = values(2, offset_group * 12, *outs, seed=3) * np.float32(6)
        mask = values(2, offset_group * 6, *outs, seed=4) if with_mask else None
        compare("DeformConv", [x, w, offset, values(6, seed=2), mask], given, (1,), terms=60)
        compare("DeformConv", [x, w, offset, None, mask], given, terms=60)


def test_offsets_that_are_no_numbers() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    offset = np.zeros((1, 2, 3, 3), np.float32)
    offset[0, 0, 0] = np.nan, np.inf, -np.inf
    offset[0, 1, 1] = 1e30, -1e30, 0.25
    found = compare("DeformConv", [x, w, offset], {}, terms=4)
    np.testing.assert_array_equal(found[0, 0], [[0, 0, 0], [0, 0, 0.75], [1, 1, 1]])


@pytest.mark.parametrize("is_constant", [True, False])
def test_windows_that_are_added(is_constant: bool) -> None:
    rng = np.random.default_rng(1)
    for image, block, attributes in (
        ([5, 6], [2, 3], {}),
        ([7, 8], [3, 2], {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1]}),
        ([9], [4], {"strides": [3]}),
        ([4, 5, 6], [2, 1, 3], {"pads": [0, 1, 1, 0, 1, 1]}),
    ):
        steps = attributes.get("strides", [1] * len(image))
        gaps, pads = attributes.get("dilations", [1] * len(image)), attributes.get("pads", [0] * 2 * len(image))
        counts = [
            (n + pads[i] + pads[len(image) + i] - (block[i] - 1) * gaps[i] - 1) // steps[i] + 1
            for i, n in enumerate(image)
        ]
        x = rng.standard_normal((2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(np.float32)
        inputs: list[Array | None] = [x, np.array(image), np.array(block)]
        found = compare("Col2Im", inputs, attributes, (1, 2) if is_constant else (), terms=9)
        if is_constant and len(image) == 2:
            peer = of_onnxruntime("Col2Im", [x, np.array(image), np.array(block)], **attributes)
            np.testing.assert_allclose(found, peer, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_samples_of_maps_with_a_depth(mode: str, padding: str, align: int) -> None:
    x, grid = values(2, 3, 4, 5, 6), values(2, 3, 2, 5, 3, seed=1) * np.float32(1.7)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    found = compare("GridSample", [x, grid], attributes, terms=640)
    if mode == "linear":
        np.testing.assert_allclose(found, of_onnxruntime("GridSample", [x, grid], **attributes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_regions(mode: str, transform: str, samples: int) -> None:
    rng = np.random.default_rng(samples)
    x = values(3, 5, 11, 13)
    corners = rng.uniform(-6, 24, (40, 4)).astype(np.float32)
    corners[:20] = np.sort(corners[:20].reshape(20, 2, 2), axis=1).reshape(20, 4)  # the others may be in reverse
    corners[38:] = [[3, 3, 3, 3], [-90, -90, 200, 90]]
    images = rng.integers(0, 3, 40)
    attributes = {
        "mode": mode, "coordinate_transformation_mode": transform, "sampling_ratio": samples, "output_height": 3,
        "output_width": 4, "spatial_scale": 0.75,
    }  # fmt: skip
    found = compare("RoiAlign", [x, corners, images], attributes, terms=400)
    if mode == "avg":
        peer = of_onnxruntime("RoiAlign", [x, corners[:20], images[:20]], **attributes)
        np.testing.assert_allclose(found[:20], peer, rtol=1e-4, atol=1e-4)


def test_regions_of_any_size() -> None:
    """They are as quick as small ones; a region that is not a number has no average."""
    x = np.ones((1, 2, 4, 4), np.float32)
    regions = np.array([[-1e9, -1e9, 1e9, 1e9], [0, 0, np.nan, 1], [0, 0, np.inf, 1]], np.float32)
    inputs = [Parameter(ElementType.from_numpy(a.dtype), PartialShape(a.shape)) for a in (x, regions, np.zeros(3, int))]
    model = Model([ops.create("RoiAlign", inputs, {"sampling_ratio": 0}).output(0)], inputs, name="regions")
    found = Core().compile_model(model, "CPU", NATIVE)([x, regions, np.zeros(3, np.int64)])[0]
    assert abs(found[0]).max() < 1e-6
    assert np.isnan(found[1:]).all()


def test_a_region_of_an_image_that_does_not_exist() -> None:
    for image in (2, -1):
        with pytest.raises(EngineError, match=str(image)):
            networks(
                "RoiAlign", [values(2, 1, 4, 4), np.ones((1, 4), np.float32), np.array([image])], {}, constants=(0, 1)
            )
