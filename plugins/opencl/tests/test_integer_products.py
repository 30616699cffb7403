"""Products and convolutions of 8-bit integers, beyond the suite's few cases: as on CPU.

Networks that were quantized by exporters consist of them; a zero point of the wrong channel, a tail that is not
written or padding that does not count as zero would change what such a network answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import Core, Model, ops
from engine.ir import Constant, ElementType, Parameter, Result

Array = NDArray[Any]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def check_as_on_cpu(core: Core, op_type: str, values: list[Array | None], **attributes: object) -> None:
    """The first input is given to an inference, the others are constants."""
    assert values[0] is not None
    x = Parameter(ElementType.from_numpy(values[0].dtype), values[0].shape, "x")
    inputs = [x, *(None if value is None else Constant(value) for value in values[1:])]
    node = ops.create(op_type, inputs, attributes)
    model = Model([Result(output) for output in node.outputs], [x])
    answers = [core.compile_model(model, device)({"x": values[0]}) for device in ("OPENCL", "CPU")]
    for index in range(node.num_outputs):
        np.testing.assert_array_equal(*(answer[index] for answer in answers))


def integers(seed: int, shape: tuple[int, ...], element: type[np.integer]) -> Array:
    limits = np.iinfo(element)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(element)


PRODUCTS = [
    ((5, 7), (7, 9), np.uint8, np.int8),
    ((4, 1), (1, 3), np.int8, np.int8),
    ((2, 1, 6, 5), (3, 5, 2), np.uint8, np.uint8),
    ((3, 0), (0, 2), np.int8, np.uint8),
    ((0, 2, 3), (3, 2), np.uint8, np.uint8),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "a_type", "b_type"), PRODUCTS)
@pytest.mark.parametrize("is_each", [False, True], ids=["whole", "each"])
def test_products(
    core: Core, left: tuple[int, ...], right: tuple[int, ...], a_type: Any, b_type: Any, is_each: bool
) -> None:
    """Tails of tiles, broadcast batches, empty matrices; zero points per tensor, or per row and column."""
    a, b = integers(1, left, a_type), integers(2, right, b_type)
    rows, columns = ((left[-2],), (right[-1],)) if is_each else ((), ())
    points = [integers(3, rows, a_type), integers(4, columns, b_type)]
    check_as_on_cpu(core, "MatMulInteger", [a, b])
    check_as_on_cpu(core, "MatMulInteger", [a, b, *points])
    scales = [np.random.default_rng(5).uniform(0.01, 0.1, shape).astype(np.float32) for shape in (rows, columns)]
    result = [np.array(0.3, np.float32), np.array(7, a_type)]
    check_as_on_cpu(core, "QLinearMatMul", [a, scales[0], points[0], b, scales[1], points[1], *result])


CONVOLUTIONS = [
    ((2, 3, 7, 6), (5, 3, 3, 2), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER"}),
    ((1, 4, 9), (6, 2, 3), {"group": 2, "dilations": (2,)}),
    ((1, 2, 4, 3, 5), (2, 2, 2, 2, 2), {}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "weights", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("weight_type", [np.uint8, np.int8])
def test_convolutions(
    core: Core, shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, object], weight_type: Any
) -> None:
    """Groups, strides, dilations, padding, one to three axes; per-channel scales and zero points, a bias."""
    x, w, channels = integers(1, shape, np.uint8), integers(2, weights, weight_type), weights[:1]
    point = np.array(77, np.uint8)
    check_as_on_cpu(core, "ConvInteger", [x, w, point, np.array(3, weight_type)], **attributes)
    scale = np.random.default_rng(3).uniform(0.001, 0.01, channels).astype(np.float32)
    bias = np.random.default_rng(4).integers(-9999, 9999, channels).astype(np.int32)
    numbers = [np.array(0.2, np.float32), point, w, scale, integers(5, channels, weight_type)]
    result = [np.array(0.25, np.float32), np.array(100, np.uint8), bias]
    check_as_on_cpu(core, "QLinearConv", [x, *numbers, *result], **attributes)


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[3.0, 9.5, 4.25]], [[-2.0], [-7.0]], [[-1.5, 6.0, 2.25]]])
def test_what_quantizes_by_its_extremes(core: Core, values: list[list[float]]) -> None:
    """Only zeros, and numbers of one sign, whose range must include 0."""
    check_as_on_cpu(core, "DynamicQuantizeLinear", [np.array(values, np.float32)])


def test_interpolation_of_codes(core: Core) -> None:
    """QOperator format has a Resize of codes, which is computed in f32 and rounded."""
    x = integers(1, (1, 2, 4, 5), np.uint8)
    check_as_on_cpu(core, "Resize", [x, None, np.array([1, 1, 2, 2], np.float32)], mode="linear")
