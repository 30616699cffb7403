"""Convolutions of three axes that run slice by slice, against the reference evaluator and unrolled windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from engine_cpu.lowering import conv, conv_runs, conv_slices, conv_slices_transposed

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]
EPSILON = float(np.finfo(np.float32).eps)


def _model(x: Array, w: Array, attributes: dict[str, Any], *, is_plain: bool = False) -> Model:
    """A convolution; unless it `is_plain`, with a bias, something that is added to its result, and an activation."""
    source = Parameter(f32, x.shape, "x")
    bias = [] if is_plain else [Constant(values(len(w), seed=2))]
    y = ops.create("Conv", [source, Constant(w), *bias], attributes).output(0)
    shape = y.shape.get_shape()
    return Model([y if is_plain else ops.Relu(ops.Add(y, Constant(values(*shape, seed=3))))], [source])


def _compare(model: Model, x: Array, terms: int) -> None:
    wanted = Core().compile_model(model, "TEMPLATE")([x])[0]
    found = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})([x])[0]
    assert found.shape == wanted.shape
    # As for two axes: both sides have rounding errors, Winograd's ten times as large.
    np.testing.assert_allclose(found, wanted, rtol=EPSILON * terms, atol=50 * EPSILON * math.sqrt(terms))


@pytest.fixture
def only_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "lower_unrolled", lambda spec, b: pytest.fail("windows were unrolled"))


WINDOWS: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((3, 3, 3), {"pads": [1] * 6}),
    ((3, 3, 3), {"pads": [2, 0, 1, 0, 1, 2], "strides": [2, 1, 1]}),
    ((3, 2, 1), {"strides": [2, 2, 3]}),
    ((2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 2, 2]}),
    ((3, 3, 3), {"pads": [1, 2, 3, 1, 2, 3], "dilations": [1, 2, 3]}),
    ((4, 1, 1), {"pads": [9, 0, 0, 7, 0, 0], "strides": [2, 1, 1]}),  # results of padding alone
    ((1, 3, 3), {}),
    ((1, 1, 1), {}),
]


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("channels", [(3, 5), (32, 48), (20, 37), (1, 20)])  # the last one: for each channel
@pytest.mark.parametrize("window", WINDOWS, ids=lambda each: "x".join(map(str, each[0])))
@pytest.mark.usefixtures("only_slices")
def test_results(
    window: tuple[tuple[int, int, int], dict[str, Any]],
    channels: tuple[int, int],
    is_plain: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, attributes = window
    is_depthwise = channels[0] == 1
    x, w = values(2, channels[is_depthwise], 5, 9, 8), values(channels[1], channels[0], *kernel, seed=1)
    model = _model(x, w, attributes | {"group": channels[1] if is_depthwise else 1}, is_plain=is_plain)
    _compare(model, x, terms=w[0].size)
    monkeypatch.setattr(conv_slices, "CHUNK_BYTES", 1 << 15)  # one or two slices at a time
    _compare(model, x, terms=w[0].size)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("channels", [(20, 37), (16, 16), (40, 3), (5, 1)])
@pytest.mark.parametrize("shape", [(7, 9, 8), (1, 12, 13), (3, 4, 5)])
def test_runs_of_pixels(
    shape: tuple[int, int, int], channels: tuple[int, int], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of whole maps, of a part of each, and maps too small for them."""
    x, w = values(2, channels[0], *shape), values(channels[1], channels[0], 1, 1, 1, seed=1)
    for size in (512 << 10, 32 << 10):
        monkeypatch.setattr(conv_runs, "_RUN_BYTES", size)
        _compare(_model(x, w, {}, is_plain=is_plain), x, terms=w[0].size)


def test_runs_are_between_plain_maps_only() -> None:
    """A map of blocks is not reordered for them."""
    x, inner = Parameter(f32, [1, 32, 4, 16, 16], "x"), Constant(values(32, 32, 1, 1, 1))
    steps = {}
    for count in (1, 3):
        y = ops.Relu(x)
        for _ in range(count):
            y = ops.Relu(ops.create("Conv", [y, inner], {}))
        network = Core().compile_model(Model([ops.Relu(y)], [x]), "CPU")
        steps[count] = [step.kernel for plan in network.native_plans() for step in plan.steps]  # type: ignore[attr-defined]
    assert "strided_copy" in steps[1]
    assert "strided_copy" not in steps[3]


TRANSPOSED: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
    ((2, 2, 2), {"strides": [2, 2, 2]}),
    ((3, 3, 3), {"strides": [2, 2, 2], "pads": [1] * 6, "output_padding": [1, 1, 1]}),
    ((4, 4, 4), {"strides": [2, 2, 2], "pads": [1] * 6}),
    ((3, 3, 3), {"pads": [1] * 6}),
    ((5, 2, 3), {"strides": [3, 1, 4], "pads": [2, 0, 1, 4, 1, 0]}),
    ((2, 3, 1), {"dilations": [1, 2, 1], "strides": [1, 2, 2]}),
    ((3, 1, 1), {"strides": [3, 1, 1], "pads": [5, 0, 0, 4, 0, 0]}),
    ((2, 2, 2), {"strides": [2, 2, 2], "output_padding": [1, 0, 1]}),  # results of no input
]


@pytest.mark.parametrize("channels", [(8, 8), (32, 48), (20, 37)])
@pytest.mark.parametrize("window", TRANSPOSED, ids=lambda each: "x".join(map(str, each[0])))
@pytest.mark.usefixtures("only_slices")
def test_transposed_results(
    window: tuple[tuple[int, int, int], dict[str, Any]], channels: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, attributes = window
    x, w = values(2, channels[0], 5, 4, 3), values(*channels, *kernel, seed=1)
    source = Parameter(f32, x.shape, "x")
    y = ops.create("ConvTranspose", [source, Constant(w), Constant(values(channels[1], seed=2))], attributes)
    for model in (Model([ops.Relu(y)], [source]), Model([y], [source])):
        _compare(model, x, terms=channels[0] * math.prod(kernel))
    monkeypatch.setattr(conv_slices_transposed, "CHUNK_BYTES", 1 << 12)
    _compare(Model([y], [source]), x, terms=channels[0] * math.prod(kernel))


@pytest.mark.parametrize(
    ("weights", "attributes"),
    [
        ((16, 16, 1, 2, 2), {"strides": [2, 2, 2]}),
        ((16, 8, 2, 2, 2), {"group": 2}),
        ((16, 3, 2, 2, 2), {}),
        ((16, 16, 2, 2, 2), {"dilations": [2, 1, 1]}),
        ((16, 16, 2, 1, 2), {"strides": [2, 1, 65]}),
    ],
)
def test_transposed_convolutions_that_do_not_run_by_slices(
    weights: tuple[int, ...], attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "lower_sliced_transposed", lambda spec, b: pytest.fail("by slices"))
    x, w = values(1, 16, 3, 3, 2), values(*weights, seed=1)
    source = Parameter(f32, x.shape, "x")
    model = Model([ops.create("ConvTranspose", [source, Constant(w)], attributes).output(0)], [source])
    _compare(model, x, terms=16 * math.prod(weights[2:]))


@pytest.mark.parametrize(
    ("frames", "weights", "attributes"),
    [
        (600, (16, 16, 1, 2, 2), {}),
        (200, (16, 1, 4, 2, 1), {"group": 16, "strides": [1, 1, 1]}),
        (20, (16, 16, 9, 2, 2), {}),
    ],
    ids=["slices", "slices of windows of channels", "deep windows"],
)
def test_steps_and_memory_are_bounded(
    frames: int, weights: tuple[int, ...], attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan has a step for each slice of the result, and copies a window of slices for it."""
    monkeypatch.setattr(conv, "lower_sliced", lambda spec, b: pytest.fail("too many slices"))
    x, w = values(1, 16, frames, 2, 2), values(*weights, seed=1)
    _compare(_model(x, w, attributes), x, terms=w[0].size)


@pytest.mark.parametrize("length", [None, 8])
@pytest.mark.parametrize("kernel", [(1, 1, 3), (3, 1, 1)])
def test_large_maps_between_convolutions_of_one_axis(kernel: tuple[int, int, int], length: int | None) -> None:
    """They join different axes, so that one step cannot run them as a chain."""
    x = Parameter(f32, [1, 16, length, 40, 40], "x")
    pads = [size // 2 for size in kernel] * 2
    first, each, last = values(96, 16, 1, 1, 1), values(96, 1, *kernel, seed=1), values(16, 96, 1, 1, 1, seed=2)
    inner = ops.Relu(ops.create("Conv", [x, Constant(first / np.float32(4))], {}))
    inner = ops.create("Conv", [inner, Constant(each)], {"group": 96, "pads": pads})
    model = Model([ops.create("Conv", [inner, Constant(last / np.float32(10))], {})], [x])
    _compare(model, values(1, 16, 8, 40, 40), terms=96 * 3 * 16)


def test_another_length_of_the_first_axis() -> None:
    x, w = Parameter(f32, [None, 16, None, None, 6], "x"), values(16, 16, 3, 3, 3, seed=1)
    model = Model([ops.create("Conv", [x, Constant(w)], {"pads": [1] * 6}).output(0)], [x])
    for shape in ((1, 16, 1, 4, 6), (2, 16, 7, 5, 6), (1, 16, 3, 1, 6)):
        _compare(model, values(*shape), terms=w[0].size)


@pytest.mark.parametrize("length", [None, 8])
def test_a_network_for_videos(length: int | None) -> None:
    """Windows along one, two and three axes, between maps in blocks and in rows."""
    x = Parameter(f32, [None, 3, length, length, 12], "x")

    def convolve(y: Any, outputs: int, *kernel: int, group: int = 1) -> Any:
        inputs = y.output(0).shape[1].get_length() // group
        w = values(outputs, inputs, *kernel, seed=outputs + sum(kernel)) / np.float32(
            math.sqrt(inputs * math.prod(kernel))
        )
        attributes = {"pads": [size // 2 for size in kernel] * 2, "group": group}
        return ops.create("Conv", [y, Constant(w), Constant(values(outputs, seed=4))], attributes)

    y: Any = ops.Relu(convolve(convolve(x, 20, 1, 3, 3), 32, 3, 1, 1))
    for _ in range(2):
        inner = ops.Relu(convolve(convolve(ops.Relu(convolve(y, 48, 1, 1, 1)), 48, 3, 3, 3, group=48), 48, 3, 3, 3))
        scale = ops.Sigmoid(convolve(ops.GlobalAveragePool(inner), 48, 1, 1, 1))
        y = ops.Relu(ops.Add(convolve(ops.Mul(inner, scale), 32, 1, 1, 1), y))
    model = Model([ops.GlobalMaxPool(convolve(y, 16, 1, 1, 3)), y], [x])
    networks = [Core().compile_model(model, device) for device in ("TEMPLATE", "CPU")]
    for batch, size in ((1, 8), (2, 8), (1, length or 5)):
        given = values(batch, 3, size, size, 12)
        wanted, found = (network([given]) for network in networks)
        for index in range(2):
            # As for the convolution of most products, of values of about 1.
            np.testing.assert_allclose(found[index], wanted[index], rtol=0, atol=50 * EPSILON * math.sqrt(48 * 27))
