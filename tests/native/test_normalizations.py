"""Softmax and the normalizations as a plan's steps: attributes in, the same numbers on every instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.errors import PlanError
from engine.native import PlanBuilder, cpu_features, isas_within, run_kernel
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[np.float32]]

ISAS = isas_within(cpu_features().isa)


def apply(kernel: str, inputs: list[Array], attributes: Mapping[str, Any], isa: str, threads: int = 2) -> Array:
    y = np.full_like(inputs[0], np.nan)
    run_kernel(kernel, inputs, [y], attributes, isa=isa, threads=threads)
    return y


def phases(kernel: str, inputs: list[Array], attributes: Mapping[str, Any]) -> int:
    """How many parallel passes a step with these sizes has."""
    builder = PlanBuilder()
    sources = [builder.add_input(array.nbytes) for array in inputs]
    builder.add_step(kernel, sources, [builder.add_output(inputs[0].nbytes)], attributes)
    return builder.build().steps[0].phases


def softmax(x: Array, axis: int, log: bool) -> Array:
    shifted = x.astype(np.float64) - x.max(axis=axis, keepdims=True)
    logarithm = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return np.asarray(logarithm if log else np.exp(logarithm), np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize(("shape", "count"), [((12, 37, 1), 1), ((3, 21, 70), 1), ((2, 50_000, 1), 2)])
def test_softmax(isa: str, log: int, shape: tuple[int, int, int], count: int) -> None:
    x = 5 * values(*shape)
    attributes = {"outer": shape[0], "axis": shape[1], "inner": shape[2], "log": log}
    assert phases("softmax_f32", [x], attributes) == count  # few long rows are shared by the workers
    y = apply("softmax_f32", [x], attributes, isa)
    # Differences of up to 40 are rounded to 2e-6, which is relative after the exponential and absolute before it.
    np.testing.assert_allclose(y, softmax(x, 1, bool(log)), rtol=6e-6, atol=6e-6 if log else 1e-9)
    np.testing.assert_allclose(y, apply("softmax_f32", [x], attributes, isa, threads=1), rtol=1e-6)


def layer_norm(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return np.asarray(centred / deviation * scale + bias, np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns", "count"), [(11, 77, 1), (2, 70_000, 2)])
def test_a_layer_norm_adds_a_residual_and_keeps_the_sum(isa: str, rows: int, columns: int, count: int) -> None:
    x, residual = values(rows, columns), values(rows, columns, seed=1)
    scale, bias = values(columns, seed=2), values(columns, seed=3)
    y, total, mean, inverse = np.empty_like(x), np.empty_like(x), np.empty(rows, np.float32), np.empty(rows, np.float32)
    attributes = {"rows": rows, "columns": columns, "epsilon": 1e-5, "residual": 1, "scale": 1, "bias": 1}
    assert phases("layer_norm_f32", [x, residual, scale, bias], attributes) == count
    run_kernel(
        "layer_norm_f32",
        [x, residual, scale, bias],
        [y, total, mean, inverse],
        attributes | {"sum": 1, "mean": 1, "inv_std": 1},
        isa=isa,
        threads=2,
    )
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_allclose(mean, total.mean(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(total.var(axis=1, dtype=np.float64) + 1e-5), rtol=1e-5)
    np.testing.assert_allclose(y, layer_norm(total, scale, bias, 1e-5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns"), [(11, 77), (2, 70_000)])
def test_rms_norm(isa: str, rows: int, columns: int) -> None:
    x, scale = values(rows, columns), values(columns, seed=2)
    y = apply("rms_norm_f32", [x, scale], {"rows": rows, "columns": columns, "epsilon": 1e-6, "scale": 1}, isa)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def blocked(x: Array) -> Array:
    """[N, C, ...] as NCHWc16, NaN in the lanes beyond the channels."""
    wide = np.full((x.shape[0], -(-x.shape[1] // 16) * 16, x[0, 0].size), np.nan, np.float32)
    wide[:, : x.shape[1]] = x.reshape(*x.shape[:2], -1)
    return np.ascontiguousarray(wide.reshape(x.shape[0], -1, 16, wide.shape[2]).swapaxes(2, 3))


def plain(y: Array, shape: tuple[int, ...]) -> Array:
    return y.swapaxes(2, 3).reshape(shape[0], -1, *shape[2:])[:, : shape[1]]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_blocked", [0, 1])
def test_channel_norm(isa: str, is_blocked: int) -> None:
    x, scale, bias = values(2, 37, 9, 11), values(37, seed=1), values(37, seed=2)
    attributes = {"batch": 2, "channels": 37, "pixels": 99, "epsilon": 1e-5, "scale": 1, "bias": 1}
    source = blocked(x) if is_blocked else x
    y = apply("channel_norm_f32", [source, scale, bias], attributes | {"blocked": is_blocked}, isa)
    expected = np.moveaxis(layer_norm(np.moveaxis(x, 1, -1), scale, bias, 1e-5), -1, 1)
    np.testing.assert_allclose(plain(y, x.shape) if is_blocked else y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_blocked", [0, 1])
@pytest.mark.parametrize(
    ("channels", "groups", "side", "spans", "count"),
    [(40, 20, 9, 0, 1), (36, 3, 5, 0, 1), (36, 2, 40, 0, 3), (20, 20, 7, 1, 3), (320, 320, 6, 0, 1)],
)
def test_group_norm(isa: str, is_blocked: int, channels: int, groups: int, side: int, spans: int, count: int) -> None:
    x, scale, bias = values(2, channels, side, side), values(channels, seed=1), values(channels, seed=2)
    attributes = {"batch": 2, "channels": channels, "groups": groups, "pixels": side * side, "epsilon": 1e-5}
    attributes |= {"scale": 1, "bias": 1, "blocked": is_blocked, "spans_batch": spans}
    source = blocked(x) if is_blocked else x
    assert phases("group_norm_f32", [source, scale, bias], attributes) == count  # few groups are shared by the workers
    y = apply("group_norm_f32", [source, scale, bias], attributes, isa)
    wide = x.reshape(2, groups, -1).astype(np.float64)
    axis = (0, 2) if spans else 2
    centred = wide - wide.mean(axis=axis, keepdims=True)
    normal = (centred / np.sqrt((centred**2).mean(axis=axis, keepdims=True) + 1e-5)).reshape(x.shape)
    expected = normal * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1)
    np.testing.assert_allclose(plain(y, x.shape) if is_blocked else y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_blocked", [0, 1])
@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.6)])
def test_local_response_normalization(isa: str, is_blocked: int, size: int, beta: float) -> None:
    x = values(2, 37, 9, 11)
    attributes = {"batch": 2, "channels": 37, "pixels": 99, "size": size, "alpha": 0.5, "beta": beta, "bias": 2.0}
    y = apply("lrn_f32", [blocked(x) if is_blocked else x], attributes | {"blocked": is_blocked}, isa)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)))
    sums = np.lib.stride_tricks.sliding_window_view(squares, size, axis=1).sum(-1)
    expected = x / (2.0 + 0.5 / size * sums) ** beta
    np.testing.assert_allclose(plain(y, x.shape) if is_blocked else y, expected, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_blocked", [0, 1])
@pytest.mark.parametrize("side", [1, 9])
def test_scale_shift_with_a_relu(isa: str, is_blocked: int, side: int) -> None:
    x, scale, shift = values(3, 37, side, side), values(37, seed=1), values(37, seed=2)
    attributes = {"batch": 3, "channels": 37, "pixels": side * side, "blocked": is_blocked, "alpha": 0.0}
    y = apply("scale_shift_f32", [blocked(x) if is_blocked else x, scale, shift], attributes, isa)
    expected = np.maximum(x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1), 0)
    np.testing.assert_allclose(plain(y, x.shape) if is_blocked else y, expected, rtol=1e-6, atol=1e-6)


ROWS = {"rows": 4, "columns": 16, "epsilon": 1e-5}
MAP = {"batch": 1, "channels": 4, "pixels": 16, "epsilon": 1e-5}
LRN = {"batch": 1, "channels": 4, "pixels": 16, "size": 5, "alpha": 1.0, "beta": 0.75, "bias": 1.0}
SOFTMAX = {"outer": 4, "axis": 16, "inner": 1}


@pytest.mark.parametrize(
    ("kernel", "attributes", "message"),
    [
        ("softmax_f32", SOFTMAX | {"outer": -1}, "outer"),
        ("softmax_f32", SOFTMAX | {"axis": 17}, "bytes"),
        ("softmax_f32", SOFTMAX | {"outer": 1 << 31, "axis": 1 << 31, "inner": 1 << 31}, "overflow"),
        ("softmax_f32", SOFTMAX | {"log": 2}, "log"),
        ("layer_norm_f32", ROWS | {"epsilon": -1.0}, "epsilon"),
        ("layer_norm_f32", ROWS | {"epsilon": float("nan")}, "epsilon"),
        ("layer_norm_f32", ROWS | {"sum": 1}, "no residual"),
        ("layer_norm_f32", ROWS | {"scale": 1}, "inputs"),
        ("layer_norm_f32", ROWS | {"columns": 64}, "bytes"),
        ("rms_norm_f32", ROWS | {"axis": 1}, "axis"),
        ("channel_norm_f32", MAP | {"blocked": 1}, "bytes"),
        ("channel_norm_f32", MAP | {"channels": -4}, "channels"),
        ("lrn_f32", LRN | {"size": 0}, "size"),
        ("lrn_f32", LRN | {"alpha": float("inf")}, "alpha"),
        ("lrn_f32", LRN | {"batch": 5}, "bytes"),
        ("scale_shift_f32", {"batch": 1, "channels": 4, "pixels": 16}, "inputs"),
        ("group_norm_f32", MAP | {"groups": 3}, "divisible"),
        ("group_norm_f32", MAP | {"groups": 0}, "groups"),
        ("group_norm_f32", MAP | {"groups": 5}, "groups"),
        ("group_norm_f32", MAP | {"groups": 2, "batch": 1 << 40}, "batch"),
        ("group_norm_f32", MAP | {"groups": 2, "bias": 1}, "inputs"),
    ],
)
def test_a_wrong_attribute_is_refused_at_plan_build(kernel: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        apply(kernel, [values(4, 16)], attributes, "generic")
