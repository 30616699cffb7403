"""Outputs of a convolution depend on their windows only: one wrong pixel must not damage a whole picture.

Winograd's algorithm computes tiles of outputs together, so that a large value in one window adds rounding errors to the
outputs of others, and one that is not finite reaches all of them.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from engine_cpu.network import CpuNetwork
from onnx import helper, numpy_helper

from engine.core import Core
from engine.errors import PropertyError, UnsupportedError
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]

EPSILON = float(np.finfo(np.float32).eps)
ACCURATE = {"EXECUTION_MODE_HINT": "ACCURACY"}


def model_of(
    w: Array, spatial: int, *, group: int = 1, is_dynamic: bool = False, residual: bool = False, batch: int = 2,
    size: int | tuple[int, ...] = 14, pad: int = 1,
) -> Any:  # fmt: skip
    """A convolution of odd kernels whose result has the size of its input, if `pad` is 1."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[pad] * 2 * spatial, group=group)]
    nodes += [helper.make_node("Add", ["c", "r"], ["y"])] if residual else []
    sizes: tuple[int | None, ...] = (size,) * spatial if isinstance(size, int) else size
    lengths = [None if is_dynamic else batch, w.shape[1] * group, *((None,) * spatial if is_dynamic else sizes)]
    given = [helper.make_tensor_value_info("x", 1, lengths)]
    if residual:
        given.append(helper.make_tensor_value_info("r", 1, [2, w.shape[0], *[14] * spatial]))
    out = helper.make_tensor_value_info("y" if residual else "c", 1, None)
    graph = helper.make_graph(nodes, "g", given, [out], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def windows_of(x: Array, pad: int = 1) -> Array:
    """The window that each output sees: [N, C, ..., 3, 3] of [N, C, ...]."""
    spatial = x.ndim - 2
    padded = np.pad(x, [(0, 0)] * 2 + [(pad, pad)] * spatial)
    return np.lib.stride_tricks.sliding_window_view(padded, (3,) * spatial, axis=tuple(range(2, x.ndim)))


def check_windows(x: Array, w: Array, y: Array, group: int = 1) -> None:
    """Against sums in f64, within rounding errors of the largest product in the window of each output.

    They are ten times as large as in a direct sum.
    """
    axes = "".join("efg"[: x.ndim - 2])
    taps = axes.upper()
    outs, ins = w.shape[:2]
    for index in range(group):
        channels, kept = (
            slice(index * ins, (index + 1) * ins),
            slice(index * outs // group, (index + 1) * outs // group),
        )
        seen = windows_of(x[:, channels].astype(np.float64))
        with np.errstate(invalid="ignore"):
            expected = np.einsum(f"nc{axes}{taps},oc{taps}->no{axes}", seen, w[kept].astype(np.float64))
        reach = np.abs(seen).max(axis=(1, *range(x.ndim, seen.ndim)))[:, None] * np.abs(w).max()
        actual = y[:, kept]
        is_seen = np.broadcast_to(np.isfinite(reach), actual.shape)
        assert np.array_equal(np.isfinite(actual), is_seen), "a value that is not finite reaches what sees it, only"
        length = ins * 3 ** (x.ndim - 2)
        reach, expected = np.broadcast_to(reach, actual.shape)[is_seen], expected[is_seen]
        tolerance = 50 * EPSILON * math.sqrt(length) * reach + EPSILON * length * np.abs(expected)
        difference = np.abs(actual[is_seen] - expected)
        assert (difference <= tolerance).all(), (difference / tolerance).max()


def exported(network: Any) -> BytesIO:
    blob = BytesIO()
    network.export_model(blob)
    blob.seek(0)
    return blob


FORMS = [("plain", value) for value in (1e4, 1e6, -1e30, 1e37, math.inf, math.nan)]
FORMS += [(form, value) for form in ("dynamic", "groups", "slices", "residual") for value in (1e6, math.nan)]


@pytest.mark.parametrize(("form", "value"), FORMS)
def test_a_large_value_changes_what_sees_it_only(form: str, value: float) -> None:
    group, spatial = (10 if form == "groups" else 1), (3 if form == "slices" else 2)
    ins, outs = (8, 80) if form == "groups" else (32, 32)
    size = (6, 14, 14)[-spatial:] if form == "slices" else (14, 14)
    w = values(outs, ins, *[3] * spatial, seed="w", is_uniform=True)
    x = values(2, ins * group, *size, seed="x", is_uniform=True)
    x[0, 5, ..., 3, 6] = value
    model = model_of(w, spatial, group=group, is_dynamic=form in {"dynamic", "slices"}, residual=form == "residual")
    r = values(2, outs, *size, seed="r", is_uniform=True)
    given = {"x": x, "r": r} if form == "residual" else {"x": x}
    y = np.asarray(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(given)[0])
    check_windows(x, w, y - r if form == "residual" else y, group)


def test_a_border_of_zeros_stays_exact() -> None:
    """Outputs that see zeros only are zero, beside others that are not: a mask stays one."""
    w, x = values(32, 32, 3, 3, seed="w", is_uniform=True), values(2, 32, 14, 14, seed="x", is_uniform=True)
    x[:, :, :, 7:] = 0
    y = np.asarray(Core().compile_model(model_of(w, 2), "CPU")({"x": x})[0])
    assert not y[..., 8:].any()
    assert y[..., 7].any()
    check_windows(x[..., :7], w, y[..., :7])


@pytest.mark.parametrize("share", [0.5, 0.1, 0.03])
@pytest.mark.parametrize("group", [1, 10])
def test_sparse_maps(share: float, group: int) -> None:
    """After a Relu, or beside a mask, most pixels may be zero in all channels: what sees only these is zero."""
    ins, outs = (8, 80) if group > 1 else (32, 32)
    w, x = values(outs, ins, 3, 3, seed="w", is_uniform=True), values(2, ins * group, 14, 14, seed="x", is_uniform=True)
    x *= values(2, 1, 14, 14, seed="m", is_uniform=True) > 1 - 2 * share
    y = np.asarray(Core().compile_model(model_of(w, 2, group=group), "CPU")({"x": x})[0])
    is_seen = windows_of(x).any(axis=(1, 4, 5))
    assert not y[np.broadcast_to(~is_seen[:, None], y.shape)].any()
    assert 0 < is_seen.mean() < 1
    check_windows(x, w, y, group)


def check_met(x: Array, w: Array, y: Array, pad: int = 1) -> None:
    """Like `check_windows`, within rounding errors of the largest weights that each output meets outside of the
    padding.

    Of an infinity times the padding, any answer is right.
    """
    expected, reach = np.zeros(y.shape), np.zeros(y.shape)
    is_met, is_unclear = np.zeros(y.shape, bool), np.zeros(y.shape, bool)
    size = y.shape[2:]
    padded = np.pad(x.astype(np.float64), [(0, 0)] * 2 + [(pad, pad)] * 2)
    inside = np.pad(np.ones(x.shape[2:]), pad)
    most = np.abs(windows_of(x, pad)).max(axis=(1, 4, 5))[:, None]
    for i, j in np.ndindex(3, 3):
        seen = padded[:, :, i : i + size[0], j : j + size[1]]
        is_inside = inside[i : i + size[0], j : j + size[1]] > 0
        tap = w[:, :, i, j].astype(np.float64)
        wild = ~np.isfinite(tap).all(axis=1)[:, None, None]
        expected += np.einsum("ncef,oc->noef", seen, np.where(np.isfinite(tap), tap, 0))
        largest = np.where(np.isfinite(tap), np.abs(tap), 0).max(axis=1)[:, None, None]
        reach = np.maximum(reach, most * np.where(is_inside, largest, 0))
        is_met |= wild & is_inside
        is_unclear |= wild & ~is_inside
    assert not np.isfinite(y[is_met]).any()
    is_finite = ~is_met & ~(is_unclear & ~np.isfinite(y))
    # A tenth of the range between weights, 16, and denormal numbers.
    tolerance = 80 * EPSILON * math.sqrt(9 * w.shape[1]) * reach + 2.0**-131 * w.shape[1] * most
    difference = np.abs(y[is_finite] - expected[is_finite])
    assert (difference <= tolerance[is_finite]).all(), (difference / tolerance[is_finite]).max()


def winograd_steps(network: Any) -> int:
    assert isinstance(network, CpuNetwork)
    return sum("winograd" in step.kernel for plan in network.native_plans() for step in plan.steps)


@pytest.mark.parametrize("value", [1e2, 1e3, 1e4, 1e6, -1e8, 1e12, 1e30, 1e37, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("form", ["constant", "computed"])
def test_a_large_weight_changes_what_meets_it_only(form: str, value: float) -> None:
    """Outputs at the border whose tap is on the padding, and all other channels."""
    w, x = values(48, 64, 3, 3, seed="w", is_uniform=True), values(1, 64, 9, 9, seed="x", is_uniform=True)
    w[3, 1, 0, 0] = w[20, 5, 2, 1] = value
    model, given = model_of(w, 2, size=9, batch=1), {"x": x}
    if form == "computed":
        del model.graph.initializer[:]
        model.graph.input.append(helper.make_tensor_value_info("w", 1, w.shape))
        given["w"] = w
    check_met(x, w, np.asarray(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(given)[0]))


@pytest.mark.parametrize("spread", [0.5, 3, 6])
def test_taps_of_any_range(spread: float) -> None:
    w, x = values(48, 64, 3, 3, seed="w", is_uniform=True), values(1, 64, 9, 9, seed="x", is_uniform=True)
    for shape in ((1, 1, 3, 3), (48, 1, 3, 3), (48, 64, 3, 3)):
        scaled = (w * 10 ** (spread * values(*shape, seed="s", is_uniform=True))).astype(np.float32)
        y = np.asarray(Core().compile_model(model_of(scaled, 2, size=9, batch=1), "CPU")({"x": x})[0])
        check_met(x, scaled, y)


@pytest.mark.parametrize(("size", "pad"), [((9, 9), 2), ((1, 9), 1), ((9, 1), 1)])
def test_outputs_that_meet_one_row_of_taps(size: tuple[int, int], pad: int) -> None:
    w, x = values(64, 64, 3, 3, seed="w", is_uniform=True), values(1, 64, *size, seed="x", is_uniform=True)
    w[:, :, 0, 1] = w[:, :, 1, 0] = w[:, :, 1, 2] = w[:, :, 2, 1] = 1e5
    model = model_of(w, 2, size=size, batch=1, pad=pad)
    network = Core().compile_model(model, "CPU")
    assert winograd_steps(network) == 0
    check_met(x, w, np.asarray(network({"x": x})[0]), pad)


@pytest.mark.parametrize("scale", [1e-36, 1e-41])
def test_a_channel_of_tiny_weights_does_not_decide_for_others(scale: float) -> None:
    """The transforms compute the others as if it were zero, and it is right, also for inputs that make it large."""
    w, x = values(64, 64, 3, 3, seed="w", is_uniform=True), values(2, 64, 14, 14, seed="x", is_uniform=True)
    tiny, zero = w.copy(), w.copy()
    tiny[3] = tiny[3] * np.float32(scale)
    tiny[3, :, 0] = 0  # what is below the smallest number, at last
    zero[3] = 0
    network = Core().compile_model(model_of(tiny, 2), "CPU")
    assert winograd_steps(network)
    y, beside = (
        np.asarray(network({"x": x})[0]),
        np.asarray(Core().compile_model(model_of(zero, 2), "CPU")({"x": x})[0]),
    )
    direct = np.asarray(Core().compile_model(model_of(tiny, 2), "CPU", ACCURATE)({"x": x})[0])
    others = np.arange(64) != 3
    assert np.array_equal(y[:, others], beside[:, others])
    assert not np.array_equal(y[:, others], direct[:, others]), "the transforms round in another way"
    assert np.abs(y[:, 3].astype(np.float64) - direct[:, 3]).max() <= 64 * 2.0**-131 + 1e-5 * 64 * scale
    large = (x * 1e30).astype(np.float32)
    check_windows(large, tiny[3:4], np.asarray(network({"x": large})[0])[:, 3:4])


def test_weights_that_transforms_cannot_hold() -> None:
    """Denormal, and so large that a transform of finite weights overflows."""
    x = values(1, 32, 14, 14, seed="x", is_uniform=True)
    for scale, factor in ((1e-38, 1e30), (3e38, 1e-30)):
        w = (values(32, 32, 3, 3, seed="w", is_uniform=True) * scale).astype(np.float32)
        given = (x * factor).astype(np.float32)
        y = np.asarray(Core().compile_model(model_of(w, 2, is_dynamic=True), "CPU")({"x": given})[0])
        check_windows(given, w, y)


def test_accuracy_rules_out_what_rounds_more() -> None:
    """The mode is part of a blob, and contradicts properties that ask for less than f32."""
    core = Core()
    w, x = values(64, 64, 3, 3, seed="w", is_uniform=True), values(2, 64, 14, 14, seed="x", is_uniform=True)
    model = model_of(w, 2)
    fast, accurate = (core.compile_model(model, "CPU", mode) for mode in ({}, ACCURATE))
    exact = np.einsum("ncefEF,ocEF->noef", windows_of(x.astype(np.float64)), w.astype(np.float64))
    errors = {}
    for name, network in {"fast": fast, "accurate": accurate}.items():
        errors[name] = np.abs(np.asarray(network({"x": x})[0]) - exact).max()
        assert isinstance(network, CpuNetwork)
        kernels = [step.kernel for plan in network.native_plans() for step in plan.steps]
        assert any("winograd" in kernel for kernel in kernels) == (name == "fast"), kernels
    assert errors["accurate"] < errors["fast"]
    again = core.import_model(exported(accurate), "CPU", ACCURATE)
    assert np.array_equal(again({"x": x})[0], accurate({"x": x})[0])
    with pytest.raises(UnsupportedError, match="compiled for PERFORMANCE, but EXECUTION_MODE_HINT is ACCURACY"):
        core.import_model(exported(fast), "CPU", ACCURATE)
    for name, value in {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "int8"}.items():
        with pytest.raises(PropertyError, match=f"ACCURACY, but {name} is {value}; expected f32"):
            core.compile_model(model, "CPU", ACCURATE | {name: value})


def test_accuracy_rounds_no_activations() -> None:
    """A model may permit rounding them to 8 bits; ACCURACY does not make use of it."""
    rows, depth, columns = 16, 256, 32
    packed = np.arange(columns * depth // 2, dtype=np.uint64).reshape(columns, depth // 32, 16).astype(np.uint8)
    scales = values(columns * depth // 32, seed="s", is_uniform=True)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4, block_size=32,
        accuracy_level=4,
    )  # fmt: skip
    given = helper.make_tensor_value_info("x", 1, [rows, depth])
    out = helper.make_tensor_value_info("y", 1, [rows, columns])
    weights = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")]
    graph = helper.make_graph([node], "g", [given], [out], weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    x = values(rows, depth, seed="x", is_uniform=True)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(columns, depth).astype(np.float64) - 8
    exact = x.astype(np.float64) @ (codes * np.repeat(scales.reshape(columns, -1), 32, axis=1)).T
    rounded, accurate = (
        np.abs(np.asarray(Core().compile_model(model, "CPU", mode)({"x": x})[0]) - exact).max()
        for mode in ({}, ACCURATE)
    )
    assert accurate < 16 * EPSILON * 8 * math.sqrt(depth) < rounded
