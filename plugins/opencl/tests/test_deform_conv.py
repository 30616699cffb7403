"""DeformConv against the evaluation, on CPUs and with the kernels of GPUs.

Detectors and restoration networks learn where a convolution reads. If a case fails here, they read elsewhere: beside
the border, from another group of channels, or of another image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering.conv import deform_conv
from engine_opencl.plan import Buffer
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import InputError
from engine.ir import Constant, ElementType, Model, Node, Parameter, Result

Array = NDArray[Any]
WINDOWS: list[dict[str, Any]] = [
    {},
    {"pads": [1, 2, 0, 1], "strides": [2, 1]},
    {"dilations": [2, 3], "pads": [2, 2, 2, 2]},
]


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device poses as one of this kind."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=request.param))
    return str(request.param)


def node_of(inputs: Sequence[Array | None], attributes: dict[str, Any], constants: Sequence[int]) -> Node:
    sources: list[Any] = [None] * len(inputs)
    for index, value in enumerate(inputs):
        if value is not None:
            is_given = index not in constants
            sources[index] = (
                Parameter(ElementType.from_numpy(value.dtype), value.shape) if is_given else Constant(value)
            )
    return ops.create("DeformConv", sources, attributes)


def both(
    inputs: Sequence[Array | None], attributes: dict[str, Any], constants: Sequence[int] = ()
) -> tuple[Array, ...]:
    """The results of OPENCL, and of the evaluation."""
    node = node_of(inputs, attributes, constants)
    parameters = [each.node for each in node.input_values if each is not None and isinstance(each.node, Parameter)]
    model = Model([Result(node.output(0))], parameters)
    given = [value for index, value in enumerate(inputs) if value is not None and index not in constants]
    (wanted,) = ops.evaluate(node, list(inputs))
    return Core().compile_model(model, "OPENCL")(given)[0], wanted


def operands(dtype: Any, group: int, offset_group: int, attributes: dict[str, Any]) -> list[Array]:
    """x, w, offset, bias and mask; offsets reach beyond the image."""
    random = np.random.default_rng(1)
    x, w = random.uniform(-1, 1, (3, 8, 9, 8)), random.uniform(-1, 1, (6, 8 // group, 3, 2))
    plain = ops.create("Conv", [Constant(x), Constant(w)], {"group": group, **attributes})
    outs = plain.output(0).shape.get_shape()[2:]
    offset, mask = (
        random.normal(0, 4, (3, offset_group * 12, *outs)),
        random.uniform(0, 1, (3, offset_group * 6, *outs)),
    )
    return [each.astype(dtype) for each in (x, w, offset, random.uniform(-1, 1, 6), mask)]


@pytest.mark.parametrize("attributes", WINDOWS)
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 4), (8, 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_moved_windows(kind: str, group: int, offset_group: int, dtype: Any, attributes: dict[str, Any]) -> None:
    if group == 8:
        x, w, offset, bias, mask = operands(dtype, 1, offset_group, attributes)
        w, bias = np.repeat(w[:4, :1], 2, 0), np.repeat(bias[:4], 2)
    else:
        x, w, offset, bias, mask = operands(dtype, group, offset_group, attributes)
    given = {"group": group, "offset_group": offset_group, **attributes}
    # Factors are at most 1; a term has at most 8 roundings in f32. In f16, each interpolated element is rounded, too,
    # and so are both results.
    terms = w[0].size + 1
    bound = 2 * 8 * terms * 2.0**-24
    if dtype is np.float16:
        bound += 3 * terms * 2.0**-11
    for inputs, constants in (
        ([x, w, offset, bias, mask], (1, 3)),
        ([x, w, offset, None, mask], ()),
        ([x, w, offset], ()),
    ):
        found, wanted = both(inputs, given, constants)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=0, atol=bound)


@pytest.mark.parametrize("images", [1, 2])
def test_a_device_without_room_for_all_images(kind: str, monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Some of the three at a time: as all at once."""
    facts, columns = device_of("0").facts, 4 * 8 * 6 * 5 * 8
    monkeypatch.setattr(deform_conv, "_SHARE", min(facts.memory, facts.largest_buffer) // (images * columns))
    taken, original = [], deform_conv._Moved.columns

    def spied(moved: deform_conv._Moved, first: int, count: int) -> Buffer:
        taken.append((first, count))
        return original(moved, first, count)

    monkeypatch.setattr(deform_conv._Moved, "columns", spied)
    inputs: list[Array | None] = [*operands(np.float32, 2, 4, WINDOWS[1])]
    found, wanted = both(inputs, {"group": 2, "offset_group": 4, **WINDOWS[1]})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * 8 * 25 * 2.0**-24)
    assert set(taken) == {1: {(0, 1), (1, 1), (2, 1)}, 2: {(0, 2), (2, 1)}}[images]


def test_offsets_that_are_no_numbers() -> None:
    """Places beyond the image, whose elements are zeros."""
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 1, 1), np.float32)
    offset = np.zeros((1, 2, 3, 3), np.float32)
    offset[0, 0, 0] = np.nan, np.inf, -np.inf
    offset[0, 1, 1] = 1e30, -1e30, 0.25
    found, _ = both([x, w, offset], {})
    np.testing.assert_array_equal(found[0, 0], [[0, 0, 0], [0, 0, 0.75], [1, 1, 1]])


@pytest.mark.parametrize(
    ("x", "w", "outputs"),
    [((0, 2, 4, 4), (3, 2, 2, 2), (3, 3)), ((1, 0, 4, 4), (3, 0, 2, 2), (3, 3)), ((1, 2, 1, 4), (3, 2, 2, 2), (0, 3))],
)
def test_nothing_to_add(x: tuple[int, ...], w: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """No images, no channels, no positions."""
    zeros = [np.zeros(shape, np.float32) for shape in (x, w, (x[0], 8, *outputs))]
    found, wanted = both([*zeros, np.ones(3, np.float32)], {})
    assert found.shape == (x[0], 3, *outputs)
    np.testing.assert_array_equal(found, wanted)


def test_an_empty_image_is_an_error() -> None:
    shapes = ((1, 2, 0, 4), (3, 2, 2, 2), (1, 8, 1, 3))
    node = node_of([np.zeros(shape, np.float32) for shape in shapes], {"pads": [1, 0, 1, 0]}, ())
    parameters = [each.node for each in node.input_values if each is not None and isinstance(each.node, Parameter)]
    with pytest.raises(InputError, match=r"DeformConv `.*`: a sample of no elements is undefined"):
        Core().compile_model(Model([Result(node.output(0))], parameters), "OPENCL")
