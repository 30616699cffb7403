"""Convolutions, products and pooling as a plan's steps: attributes in, the same numbers on every instruction set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.errors import PlanError
from engine.native import cpu_features, isas_within, pack, run_kernel
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[np.float32]]

PHASES = {"output_tile": 4, "phases": 1}
ISAS = isas_within(cpu_features().isa)
CONV: dict[str, Any] = {
    "batch": 1,
    "in_channels": 20,
    "out_channels": 40,
    "in": [9, 13],
    "out": [9, 13],
    "kernel": [3, 3],
    "pads": [1, 1, 1, 1],
    "bias": 1,
    "activation": "clip",
    "alpha": 0.0,
}


def padded(channels: int) -> int:
    return (channels + 15) // 16 * 16


def convolve(x: Array, w: Array, bias: Array, groups: int = 1, pad: int = 1) -> Array:
    """Stride 1 and a ReLU, in f64."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], axis=(2, 3))
    parts = [
        np.einsum("nchwij,ocij->nohw", part, kernel)
        for part, kernel in zip(np.split(windows, groups, 1), np.split(w.astype(np.float64), groups), strict=True)
    ]
    return np.maximum(np.concatenate(parts, 1) + bias.reshape(1, -1, 1, 1), 0).astype(np.float32)


def to_blocked(x: Array, isa: str) -> Array:
    n, c, h, w = x.shape
    blocked = np.empty((n, padded(c) // 16, h, w, 16), np.float32)
    run_kernel("to_blocked_f32", [x], [blocked], {"batch": n, "channels": c, "pixels": h * w}, isa=isa)
    return blocked


def run_conv(
    kernel: str, x: Array, w: Array, bias: Array, attributes: Mapping[str, Any], isa: str, packed_floats: int
) -> Array:
    """Pack the weights, convolve, and bring the result back to NCHW."""
    packed = np.empty(packed_floats, np.float32)
    run_kernel(f"pack_{kernel}", [w], [packed], attributes, isa=isa)
    source = x if kernel == "conv_planar_f32" else to_blocked(x, isa)
    n, c, (h, wide) = x.shape[0], attributes["out_channels"], attributes["out"]
    y = np.empty((n, padded(c) // 16, h, wide, 16), np.float32)
    wide_bias = np.zeros(padded(c), np.float32)
    wide_bias[:c] = bias
    run_kernel(kernel, [source, packed, wide_bias], [y], attributes, isa=isa, threads=2)
    plain = np.empty((n, c, h, wide), np.float32)
    run_kernel("from_blocked_f32", [y], [plain], {"batch": n, "channels": c, "pixels": h * wide}, isa=isa)
    return plain


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kernel", "more", "floats"),
    [
        ("conv_blocked_f32", {}, 48 * 20 * 9),
        ("conv_blocked_f32", {"vectors": 1, "pixels": 5, "tile_block": 3, "channel_split": 2, "flat": 1}, 48 * 20 * 9),
        ("conv_planar_f32", {}, 48 * 20 * 9),
        ("conv_taps_f32", {}, 48 * 20 * 9),
        ("winograd_f32", {"output_tile": 2}, 48 * 20 * (16 + 9) + 1),
        ("winograd_f32", {"output_tile": 4}, 48 * 20 * (36 + 9) + 1),
        ("winograd_f32", {"output_tile": 4, "phases": 1}, 48 * 20 * (36 + 9) + 1),
    ],
)
def test_every_kernel_computes_the_same_convolution(isa: str, kernel: str, more: dict[str, Any], floats: int) -> None:
    x, w, bias = values(1, 20, 9, 13), values(40, 20, 3, 3, seed=1), values(40, seed=2)
    y = run_conv(kernel, x, w, bias, CONV | more, isa, floats)
    np.testing.assert_allclose(y, convolve(x, w, bias), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_depthwise(isa: str) -> None:
    x, w, bias = values(2, 20, 9, 13), values(20, 1, 3, 3, seed=1), values(20, seed=2)
    attributes = CONV | {"batch": 2, "groups": 20, "out_channels": 20}
    y = run_conv("depthwise_f32", x, w, bias, attributes, isa, 32 * 9)
    np.testing.assert_allclose(y, convolve(x, w, bias, groups=20), rtol=1e-5, atol=1e-5)


def test_maps_may_be_channels_of_larger_ones() -> None:
    """Steps between images, which a Concat without a copy needs."""
    x, w, bias = values(3, 20, 9, 13), values(16, 20, 3, 3, seed=1), values(16, seed=2)
    image_in, image_out = 32 * 9 * 13, 16 * 9 * 13
    wide_x = np.full((3, image_in + 160), np.nan, np.float32)
    wide_x[:, :image_in] = to_blocked(x, "generic").reshape(3, -1)
    attributes = CONV | {"batch": 3, "out_channels": 16}
    for kernel, more in (("conv_blocked_f32", {}), ("winograd_f32", {"output_tile": 4}), ("winograd_f32", PHASES)):
        packed = pack("pack_" + kernel, [w], attributes | more)
        wide_y = np.full((3, image_out + 48), np.nan, np.float32)
        steps = {"x_batch": image_in + 160, "y_batch": image_out + 48}
        run_kernel(kernel, [wide_x, packed, bias], [wide_y], attributes | more | steps)
        y = wide_y[:, :image_out].reshape(3, 9, 13, 16).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(y, convolve(x, w, bias), rtol=1e-4, atol=2e-4)
        assert np.isnan(wide_y[:, image_out:]).all()


@pytest.mark.parametrize("kernel", ["max_pool_f32", "average_pool_f32"])
def test_pooled_maps_may_be_channels_of_larger_ones(kernel: str) -> None:
    x = values(2, 16, 4, 6)
    wide_x, wide_y = np.full((2, 1000), np.nan, np.float32), np.full((2, 500), np.nan, np.float32)
    wide_x[:, : 16 * 24] = to_blocked(x, "generic").reshape(2, -1)
    attributes = {"batch": 2, "in_channels": 16, "out_channels": 16, "in": [4, 6], "out": [2, 3], "kernel": [2, 2]}
    run_kernel(kernel, [wide_x], [wide_y], attributes | {"strides": [2, 2], "x_batch": 1000, "y_batch": 500})
    windows = x.reshape(2, 16, 2, 2, 3, 2)
    expected = windows.max((3, 5)) if kernel == "max_pool_f32" else windows.mean((3, 5))
    np.testing.assert_allclose(
        wide_y[:, : 16 * 6].reshape(2, 2, 3, 16).transpose(0, 3, 1, 2), expected, rtol=1e-6, atol=1e-6
    )
    assert np.isnan(wide_y[:, 16 * 6 :]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("packed", [0, 1])
def test_products(isa: str, shared: int, transposed: int, packed: int) -> None:
    a = values(3, 17, 33)
    b = values(*(() if shared else (3,)), *((41, 33) if transposed else (33, 41)), seed=1)
    source = {"n": 41, "k": 33, "transposed": transposed}
    weights, c = np.empty((1 if shared else 3) * 48 * 33, np.float32), np.empty((3, 17, 41), np.float32)
    attributes: dict[str, Any] = {"m": 17, "n": 41, "k": 33, "batch": [3], "packed": packed}
    if packed:
        run_kernel("pack_gemm_f32", [b], [weights], source | {"matrices": 1 if shared else 3}, isa=isa)
        attributes["b_batch"] = [0 if shared else 1]
    else:
        weights = b
        attributes |= {"transposed": transposed, "b_batch": [0 if shared else 33 * 41]}
    run_kernel("gemm_f32", [a, weights], [c], attributes, isa=isa, threads=2)
    np.testing.assert_allclose(c, a @ (np.swapaxes(b, -1, -2) if transposed else b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "changes", "message"),
    [
        ("conv_blocked_f32", {"kernel": [3]}, "1 values; expected 2"),
        ("conv_blocked_f32", {"strides": [0, 1]}, "value 0"),
        ("conv_blocked_f32", {"groups": 3}, "divisible"),
        ("conv_blocked_f32", {"groups": 2}, "multiples of 16"),
        ("conv_blocked_f32", {"vectors": 1, "pixels": 1000}, "pixels"),
        ("conv_blocked_f32", {"in_channels": 400}, "bytes"),
        ("conv_blocked_f32", {"in": [1 << 30, 1 << 30], "batch": 1 << 30}, "overflow"),
        ("conv_blocked_f32", {"activation": "cosine"}, '"activation" is "cosine"; expected one of clip, leaky_relu'),
        ("conv_blocked_f32", {"x_batch": 7}, "x_batch"),
        ("conv_blocked_f32", {"batch": 2, "x_batch": 1 << 59}, "bytes"),
        ("conv_blocked_f32", {"batch": 1 << 24, "x_batch": 1 << 59}, "overflow"),
        ("conv_grouped_f32", {"expanded": 2}, "expanded"),
        ("conv_lanes_f32", {"groups": 4}, "groups of 5 input and 10 output channels; expected outputs that"),
        ("conv_pointwise_groups_f32", {}, "takes a 1x1 kernel of stride 1 without padding"),
        ("conv_transpose_f32", {"strides": [65, 1]}, "64 at most"),
        ("conv_taps_f32", {"groups": 2}, "expected 1"),
        ("conv_taps_f32", {"scale": 1}, "no scale"),
        ("conv_taps_f32", {"residual_after": 1}, "before the activation"),
        ("conv_taps_f32", {"out": [18, 13], "out_channels": 16}, "no tap"),
        ("winograd_f32", {"strides": [2, 2], "output_tile": 4}, "stride 1"),
        ("winograd_f32", {"output_tile": 3}, "expected 2 or 4"),
        ("winograd_f32", {"pads": [2, 1, 0, 1], "output_tile": 4}, "paddings of at most the dilation"),
        ("winograd_f32", {"in": [1, 13], "out": [1, 13], "output_tile": 4}, "at least twice the dilation"),
        ("winograd_f32", {"dilations": [5, 1], "pads": [5, 1, 5, 1], "output_tile": 4}, "at least twice the dilation"),
        ("depthwise_f32", {}, "expected as many"),
    ],
)
def test_a_wrong_attribute_is_refused_at_plan_build(kernel: str, changes: dict[str, Any], message: str) -> None:
    x, w, y = np.zeros(32 * 9 * 13, np.float32), np.zeros(48 * 20 * 36, np.float32), np.zeros(48 * 9 * 13, np.float32)
    with pytest.raises(PlanError, match=message):
        run_kernel(kernel, [x, w, np.zeros(48, np.float32)], [y], CONV | changes)
