"""Winograd's convolutions: as exact as the algorithm allows, and only where they apply.

If these fail, 3x3 layers of users' networks are wrong, or less exact than the error analysis says.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering.conv import conv as conv_lowering
from engine_opencl.lowering.conv import gpu_convolution
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.conv.winograd import RANGE, G, Winograd, is_winograd
from engine_opencl.lowering.conv.winograd_rows import winograd_rows
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Core, ops
from engine.errors import PropertyError, UnsupportedError
from engine.ir import Constant, Model, Parameter, Result, f16, f32
from engine.ops.windows import WindowGeometry

A = np.array([[1, 0], [1, 1], [1, -1], [0, -1]])
B = np.array([[1, 0, 0, 0], [0, 1, -1, 1], [-1, 1, 1, 0], [0, 0, 0, -1]])
FACTS = DeviceFacts("a GPU", "1.0", "gpu", False, 64, 1024, 65536, 2**32, 2**34, 80)
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device poses as one of this kind, and uses Winograd for all supported convolutions."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=request.param))
    whole, direct = gpu_convolution.variants_of, conv_lowering.block_convolution

    def rows(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
        (winograd_rows if is_winograd(b.facts, c) else direct)(b, c, epilogue)

    monkeypatch.setattr(gpu_convolution, "variants_of", lambda f, c: [Winograd()] if is_winograd(f, c) else whole(f, c))
    monkeypatch.setattr(conv_lowering, "block_convolution", rows)
    monkeypatch.setattr(conv_lowering, "is_depthwise_rows", lambda c: False)


def result_of(values: list[NDArray[np.float32]], attributes: dict[str, Any]) -> NDArray[np.float32]:
    """With a bias, a residual and an activation."""
    x, w, bias, residual = values
    parameters = [Parameter(f32, x.shape, "x"), Parameter(f32, residual.shape, "r")]
    node = ops.create("Conv", [parameters[0], Constant(w), Constant(bias)], attributes)
    model = Model([Result(ops.Relu(ops.Add(node, parameters[1])))], parameters)
    found: NDArray[np.float32] = Core().compile_model(model, "OPENCL", {"KERNEL_TRIAL_SECONDS": 0})([x, residual])[0]
    return found


def exact(values: list[NDArray[np.float32]], groups: int, pads: list[int]) -> NDArray[np.float64]:
    """The same in f64, as sums over windows."""
    x, w, bias, residual = (value.astype(np.float64) for value in values)
    n, (outputs, channels) = x.shape[0], w.shape[:2]
    full = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(full, (3, 3), axis=(2, 3))
    windows = windows.reshape(n, groups, channels, *windows.shape[2:])
    sums = np.einsum("gmcij,ngchwij->ngmhw", w.reshape(groups, outputs // groups, channels, 3, 3), windows)
    found: NDArray[np.float64] = np.maximum(sums.reshape(residual.shape) + bias[:, None, None] + residual, 0)
    return found


def error_bound(values: list[NDArray[np.float32]], groups: int, pads: list[int]) -> NDArray[np.float64]:
    """The error bound of each result, by the analysis in `winograd.py`, including the added terms."""
    x, w, bias, residual = (np.abs(value.astype(np.float64)) for value in values)
    n, channels, height, width = residual.shape
    tiles_h, tiles_w, per_group = -(-height // 2), -(-width // 2), w.shape[1]
    full = np.zeros((n, x.shape[1], 2 * tiles_h + 2, 2 * tiles_w + 2))
    inner = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))[..., : full.shape[2], : full.shape[3]]
    full[..., : inner.shape[2], : inner.shape[3]] = inner
    patches = np.lib.stride_tricks.sliding_window_view(full, (4, 4), axis=(2, 3))[:, :, ::2, ::2]
    v = (np.abs(B).T @ patches @ np.abs(B)).reshape(n, groups, per_group, tiles_h, tiles_w, 4, 4)
    u = (np.abs(G) @ w @ np.abs(G).T).reshape(groups, channels // groups, per_group, 4, 4)
    sums = np.einsum("gmcij,ngchwij->ngmhwij", u, v).reshape(n, channels, tiles_h, tiles_w, 4, 4)
    made = (np.abs(A).T @ sums @ np.abs(A)).transpose(0, 1, 2, 4, 3, 5).reshape(n, channels, 2 * tiles_h, 2 * tiles_w)
    most = made[..., :height, :width] + bias[:, None, None] + residual
    found: NDArray[np.float64] = (per_group + 16) * 2.0**-24 * most
    return found


@SETTINGS
@given(
    images=st.integers(0, 3), groups=st.integers(1, 3), channels=st.integers(1, 40), outputs=st.integers(1, 40),
    space=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    pads=st.lists(st.integers(0, 3), min_size=4, max_size=4), seed=st.integers(0, 9),
)  # fmt: skip
def test_the_error_is_bounded(
    kind: None,
    images: int,
    groups: int,
    channels: int,
    outputs: int,
    space: tuple[int, int],
    pads: list[int],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    height, width = (max(n, 3 - pads[axis] - pads[axis + 2]) for axis, n in enumerate(space))
    result = (images, groups * outputs, height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2)
    shapes = ((images, groups * channels, height, width), (groups * outputs, channels, 3, 3), result[1:2], result)
    values = [rng.standard_normal(shape, np.float32) for shape in shapes]
    found, expected = result_of(values, {"group": groups, "pads": pads}), exact(values, groups, pads)
    assert found.shape == expected.shape == result
    np.testing.assert_array_less(np.abs(found - expected), error_bound(values, groups, pads) + 1e-30)


def convolution(channels: int, size: int, **changes: Any) -> Convolution:
    g = WindowGeometry((1, size, size), (1, size, size), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (0, 1, 1))
    own = Buffer(0)
    weights = Buffer(0, weight="w")
    c = Convolution(
        8, 1, channels, channels, g, False, f32, own, weights, None, None, own, "",
        lambda: np.ones((channels, channels, 3, 3), np.float32),
    )  # fmt: skip
    return replace(c, **changes)


def test_where_it_is_the_default() -> None:
    """If it saves more products than it moves elements."""
    chosen = {n: gpu_convolution.variants_of(FACTS, convolution(n, 56))[0] for n in (16, 32, 512)}
    assert [isinstance(each, Winograd) for each in chosen.values()] == [False, False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"element_type": f16},
        {"is_transposed": True},
        {"filters": None},
        {"geometry": replace(convolution(8, 56).geometry, strides=(1, 2, 2))},
        {"geometry": replace(convolution(8, 56).geometry, dilations=(1, 1, 2))},
        {"geometry": replace(convolution(8, 56).geometry, kernel=(1, 5, 3))},
        {"geometry": replace(convolution(8, 56).geometry, inputs=(2, 56, 56), outputs=(2, 56, 56))},
        {"geometry": replace(convolution(8, 56).geometry, pads_begin=(0, 2, 1))},
        {"geometry": replace(convolution(8, 56).geometry, inputs=(1, 1, 56), outputs=(1, 1, 56))},
        {"images": 10**6},
    ],
    ids=["f16", "transposed", "computed", "strides", "dilations", "5x3", "3 axes", "pads of 2", "one row", "no room"],
)
def test_where_it_does_not_apply(changes: dict[str, Any]) -> None:
    assert is_winograd(FACTS, convolution(512, 56))
    assert not is_winograd(FACTS, convolution(512, 56, **changes))


def usual_weights() -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((64, 64, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("factor", "is_used"),
    [(1e2, True), (1e4, False), (1e12, False), (1e38, False), (np.inf, False), (np.nan, False)],
)
def test_uneven_weights_rule_it_out(factor: float, is_used: bool) -> None:
    weights = usual_weights()
    weights[3, 1, 0, 0] = factor
    assert is_winograd(FACTS, convolution(64, 56, filters=lambda: weights)) == is_used


def test_a_channel_of_tiny_weights_does_not_decide_for_others() -> None:
    """Channels that training has emptied are common; a layer of them alone is computed directly."""
    for factor in (0.0, 1e-36, 1e-41):
        weights = usual_weights()
        weights[3] *= np.float32(factor)
        weights[3, :, 0] = 0
        assert is_winograd(FACTS, convolution(64, 56, filters=lambda weights=weights: weights))
    assert not is_winograd(FACTS, convolution(64, 56, filters=lambda: usual_weights() * np.float32(1e-36)))
    taps = np.exp2(np.arange(9, dtype=np.float32).reshape(3, 3) * 5)
    assert not is_winograd(FACTS, convolution(64, 56, filters=lambda: usual_weights() * taps))


@pytest.mark.parametrize("value", [1e4, 1e7, 1e30, np.inf])
def test_a_large_weight_changes_what_meets_it_only(kind: None, value: float) -> None:
    """Rows and columns at the border meet only some taps, and one filter does not meet the others' taps."""
    rng, pads = np.random.default_rng(1), [1, 1, 1, 1]
    values = [rng.uniform(0.5, 1, s).astype(np.float32) for s in ((1, 64, 9, 8), (6, 64, 3, 3), (6,), (1, 6, 9, 8))]
    usual = [each.copy() for each in values]
    values[1][2, 5, 0, 0] = value
    usual[1][2, 5, 0, 0] = 0
    found, expected = result_of(values, {"pads": pads}), exact(usual, 1, pads)
    meets = np.zeros(found.shape, bool)
    meets[:, 2, 1:, 1:] = True
    if np.isinf(value):  # times zeros of the padding: any answer
        meets[:, 2] = True
        assert not np.isfinite(found[:, 2, 1:, 1:]).any()
    bound = 64 * (64 + 16) * 2.0**-24 * RANGE * 64
    assert np.abs(found[~meets] - expected[~meets]).max() < bound / RANGE


@pytest.mark.parametrize("value", [1e6, -1e30, np.inf, np.nan])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_large_value_changes_what_sees_it_only(kind: None, value: float, groups: int) -> None:
    rng, channels, pads = np.random.default_rng(1), 64 * groups, [1, 1, 1, 1]
    shapes = ((2, channels, 9, 8), (3 * groups, 64, 3, 3), (3 * groups,), (2, 3 * groups, 9, 8))
    values = [rng.uniform(0.5, 1, shape).astype(np.float32) for shape in shapes]
    values[0][1, 5, 4, 4] = value
    found, expected = result_of(values, {"group": groups, "pads": pads}), exact(values, groups, pads)
    sees = np.zeros(found.shape, bool)
    sees[1, :3, 3:6, 3:6] = True  # channel 5 is in the first group
    bound = 64 * (64 + 16) * 2.0**-24 * RANGE * 64 + 1e-5
    assert np.abs(found[~sees] - expected[~sees]).max() < bound / RANGE, "the largest value of these windows is 1"
    np.testing.assert_allclose(found[sees], expected[sees], rtol=1e-5)


def test_results_just_within_the_range_obey_the_bound(kind: None) -> None:
    rng, pads = np.random.default_rng(1), [1, 1, 1, 1]
    values = [rng.uniform(0.5, 1, s).astype(np.float32) for s in ((1, 8, 6, 6), (3, 8, 3, 3), (3,), (1, 3, 6, 6))]
    values[0][0, 0, 3, 3] = RANGE / 2
    found, expected = result_of(values, {"group": 1, "pads": pads}), exact(values, 1, pads)
    bound = 64 * (8 + 16) * 2.0**-24 * RANGE * 8
    assert np.abs(found - expected).max() < bound


def largest_in(x: NDArray[np.float32], size: int, step: int) -> NDArray[np.float64]:
    """The largest magnitude in each square of `size` by `size`, in all channels of maps padded by 1."""
    seen = np.abs(np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, size), (1, size)))).max(axis=1)
    squares = np.lib.stride_tricks.sliding_window_view(seen, (size, size), axis=(1, 2))[:, ::step, ::step]
    found: NDArray[np.float64] = squares.max(axis=(3, 4))
    return found


@pytest.mark.parametrize("outputs", [3, 20, 40])
@pytest.mark.parametrize("pattern", ["half of the pixels", "few pixels", "columns", "zeros", "scales", "spikes"])
def test_sparse_maps_and_any_range(kind: None, pattern: str, outputs: int) -> None:
    """Each result obeys the bound of its own window: one that sees zeros only is what is added to it."""
    rng, groups, channels, pads = np.random.default_rng(1), 2, 72, [1, 1, 1, 1]
    n, height, width = 2, 9, 8
    result = (n, groups * outputs, height, width)
    shapes = ((n, groups * channels, height, width), (groups * outputs, channels, 3, 3), result[1:2], result)
    values = [rng.uniform(0.5, 1, shape).astype(np.float32) for shape in shapes]
    places, columns = rng.random((n, 1, height, width)), np.arange(width)
    is_spike = (np.arange(height)[:, None] % 4 == 1) & (columns % 4 == 1)
    factor = {
        "half of the pixels": places < 0.5, "few pixels": places < 0.03, "columns": columns >= 3, "zeros": 0.0,
        "scales": np.exp2(40 * places), "spikes": np.where(is_spike, 1e6, 1.0),
    }[pattern]  # fmt: skip
    values[0] = (values[0] * factor).astype(np.float32)
    values[0][1, :channels] *= np.float32(1e-3)  # groups are judged one by one
    found, expected = result_of(values, {"group": groups, "pads": pads}), exact(values, groups, pads)
    for group in range(groups):
        x = values[0][:, group * channels : (group + 1) * channels]
        rows = slice(group * outputs, (group + 1) * outputs)
        window = largest_in(x, 3, 1)[:, :height, :width]
        tile = largest_in(x, 4, 2).repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]
        seen = np.minimum(tile, RANGE * window)[:, None]
        weights = np.abs(values[1][rows].astype(np.float64)).max(axis=(2, 3)).sum(axis=1)[:, None, None]
        bound = 64 * (channels + 16) * 2.0**-24 * seen * weights + 2.0**-23 * expected[:, rows]
        np.testing.assert_array_less(np.abs(found[:, rows] - expected[:, rows]), bound + 1e-30)


def test_accuracy_rules_it_out() -> None:
    """The mode is part of a blob, and contradicts a property that asks for less than f32."""
    accurate = replace(FACTS, is_accurate=True)
    assert not is_winograd(accurate, convolution(512, 56))
    assert not any(isinstance(each, Winograd) for each in gpu_convolution.variants_of(accurate, convolution(512, 56)))
    core, mode = Core(), {"EXECUTION_MODE_HINT": "ACCURACY", "KERNEL_TRIAL_SECONDS": 0}
    x = Parameter(f32, [1, 4, 6, 6], "x")
    model = Model([ops.Conv(x, Constant(np.ones((4, 4, 3, 3), np.float32)))], [x])
    blobs = []
    for config in (mode, {"KERNEL_TRIAL_SECONDS": 0}):
        blobs.append(BytesIO())
        core.compile_model(model, "OPENCL", config).export_model(blobs[-1])
        blobs[-1].seek(0)
    core.import_model(blobs[0], "OPENCL", mode)
    with pytest.raises(UnsupportedError, match="compiled for PERFORMANCE, but EXECUTION_MODE_HINT is ACCURACY"):
        core.import_model(blobs[1], "OPENCL", mode)
    with pytest.raises(PropertyError, match="ACCURACY, but INFERENCE_PRECISION_HINT is f16; expected f32"):
        core.compile_model(model, "OPENCL", {**mode, "INFERENCE_PRECISION_HINT": "f16"})
