"""Networks from images to images or boxes: U-Net, a detector, SegFormer, and the hybrid MobileViT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.testing.networks.attention import attention_heads, transformer_layer
from engine.testing.networks.builder import AFTER_GELU, AFTER_RELU, AFTER_SILU, NetworkBuilder, SeededNetwork


def unet(seed: int = 0, *, image: int = 256, width: int = 32, depth: int = 3, classes: int = 1) -> SeededNetwork:
    """A U-Net (Ronneberger et al. 2015) of padded convolutions."""
    g = NetworkBuilder("unet", seed)
    x = _two_convs(g, g.input("x", 1, 3, image, image), width, 1.0)
    skips = []
    for level in range(1, depth + 1):
        skips.append(x)
        x = _two_convs(g, g.max_pool(x, 2, 2), width * 2**level, AFTER_RELU)
    for level in reversed(range(depth)):
        channels = width * 2**level
        weight = g.weight(2 * channels, channels, 2, 2, fan_in=2 * channels, gain=AFTER_RELU)
        x = g.add("ConvTranspose", x, weight, g.bias(channels), kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4)
        x = _two_convs(g, g.add("Concat", skips.pop(), x, axis=1), channels, 1.2)
    return g.finish(g.conv(x, classes, gain=AFTER_RELU))


def _two_convs(g: NetworkBuilder, x: str, channels: int, gain: float) -> str:
    return g.relu(g.conv(g.relu(g.conv(x, channels, 3, gain=gain)), channels, 3, gain=AFTER_RELU))


def yolo(
    seed: int = 0, *, image: int = 320, width: int = 16, repeats: Sequence[int] = (1, 2, 2, 1), classes: int = 80
) -> SeededNetwork:
    """A YOLO-like one-stage detector: a backbone of split blocks, a pyramid, box and class heads.

    The outputs are boxes [1, 4, anchors] in units of cells, and class scores [1, classes, anchors].
    """
    g = NetworkBuilder("yolo", seed)
    x = _conv_silu(g, g.input("x", 1, 3, image, image), width, 3, 2, 1.0)
    levels = []
    for stage, count in enumerate(repeats):
        x = _conv_silu(g, x, width * 2 ** (stage + 1), 3, 2)
        x = _split_block(g, x, width * 2 ** (stage + 1), count, shortcut=True)
        levels.append(x)
    _, p3, p4, _ = levels
    p5 = _spatial_pyramid(g, x)
    p4 = _split_block(g, _joined(g, _upsampled(g, p5), p4), width * 8, 1, shortcut=False)
    p3 = _split_block(g, _joined(g, _upsampled(g, p4), p3), width * 4, 1, shortcut=False)
    p4 = _split_block(g, _joined(g, _conv_silu(g, p3, width * 4, 3, 2), p4), width * 8, 1, shortcut=False)
    p5 = _split_block(g, _joined(g, _conv_silu(g, p4, width * 8, 3, 2), p5), width * 16, 1, shortcut=False)
    return g.finish(*_detections(g, (p3, p4, p5), classes))


# Between the SiLU gains for unit-variance and larger values: a detector has many such layers in a row.
_SILU_GAIN = 1.55


def _conv_silu(
    g: NetworkBuilder, x: str, channels: int, kernel: int = 1, stride: int = 1, gain: float = _SILU_GAIN
) -> str:
    return g.silu(g.conv(x, channels, kernel, stride=stride, gain=gain))


def _split_block(g: NetworkBuilder, x: str, channels: int, count: int, shortcut: bool) -> str:
    half = channels // 2
    parts = g.add_many("Split", _conv_silu(g, x, channels), g.ints(half, half), outputs=2, axis=1)
    for _ in range(count):
        y = _conv_silu(g, _conv_silu(g, parts[-1], half, 3), half, 3)
        parts.append(g.add("Add", parts[-1], y) if shortcut else y)
    return _conv_silu(g, g.add("Concat", *parts, axis=1), channels)


def _spatial_pyramid(g: NetworkBuilder, x: str) -> str:
    channels = g.shape(x)[1]
    parts = [_conv_silu(g, x, channels // 2)]
    for _ in range(3):
        parts.append(g.max_pool(parts[-1], 5, 1, 2))
    return _conv_silu(g, g.add("Concat", *parts, axis=1), channels, gain=1.0)


def _upsampled(g: NetworkBuilder, x: str) -> str:
    scales = g.constant(np.array([1, 1, 2, 2], np.float32))
    return g.add("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                 coordinate_transformation_mode="asymmetric")  # fmt: skip


def _joined(g: NetworkBuilder, first: str, second: str) -> str:
    return g.add("Concat", first, second, axis=1)


def _detections(g: NetworkBuilder, levels: Sequence[str], classes: int) -> tuple[str, str]:
    """Boxes as the expectation of a distribution over 16 distances per side, and scores by Sigmoid."""
    bins, flat = 16, []
    for x in levels:
        boxes = g.conv(_conv_silu(g, x, 4 * bins, 3), 4 * bins, gain=2.5)
        scores = g.conv(_conv_silu(g, x, max(classes, 16), 3), classes, gain=2.5)
        flat.append(g.reshape(g.add("Concat", boxes, scores, axis=1), 1, 4 * bins + classes, -1))
    whole = g.add("Concat", *flat, axis=2)
    boxes, scores = g.add_many("Split", whole, g.ints(4 * bins, classes), outputs=2, axis=1)
    anchors = g.shape(whole)[2]
    boxes = g.transpose(g.reshape(boxes, 1, 4, bins, anchors), 0, 2, 1, 3)
    boxes = g.add("Softmax", boxes, axis=1)
    distances = g.constant(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    boxes = g.add("Conv", boxes, distances, kernel_shape=[1, 1])
    return g.reshape(boxes, 1, 4, anchors), g.add("Sigmoid", scores)


def segformer_b0(
    seed: int = 0,
    *,
    image: int = 256,
    widths: Sequence[int] = (32, 64, 160, 256),
    heads: Sequence[int] = (1, 2, 5, 8),
    reductions: Sequence[int] = (8, 4, 2, 1),
    depths: Sequence[int] = (2, 2, 2, 2),
    decoder: int = 256,
    classes: int = 150,
) -> SeededNetwork:
    """SegFormer-B0 (Xie et al. 2021): attention to a smaller image of keys, and a decoder of four resized levels."""
    g = NetworkBuilder("segformer_b0", seed)
    x, levels = g.input("x", 1, 3, image, image), []
    for stage, (width, count, ratio, depth) in enumerate(zip(widths, heads, reductions, depths, strict=True)):
        kernel, stride = (7, 4) if stage == 0 else (3, 2)
        x = g.conv(x, width, kernel, stride=stride)
        side = g.shape(x)[2]
        tokens = g.layer_norm(_tokens(g, x))
        for _ in range(depth):
            tokens = _segformer_layer(g, tokens, side, count, ratio)
        x = g.transpose(g.reshape(g.layer_norm(tokens), 1, side, side, width), 0, 3, 1, 2)
        levels.append(x)
    size = g.shape(levels[0])[2]
    resized = []
    for level in levels:
        side = g.shape(level)[2]
        image_of = g.reshape(g.transpose(g.linear(_tokens(g, level), decoder), 0, 2, 1), 1, decoder, side, side)
        target = g.ints(1, decoder, size, size)
        resized.append(g.add("Resize", image_of, "", "", target, mode="linear",
                             coordinate_transformation_mode="half_pixel"))  # fmt: skip
    x = g.relu(g.conv(g.add("Concat", *reversed(resized), axis=1), decoder))
    return g.finish(g.conv(x, classes, gain=AFTER_RELU))


def _tokens(g: NetworkBuilder, x: str) -> str:
    _, channels, height, width = g.shape(x)
    return g.transpose(g.reshape(x, 1, channels, height * width), 0, 2, 1)


def _segformer_layer(g: NetworkBuilder, x: str, side: int, heads: int, ratio: int) -> str:
    _, length, width = g.shape(x)
    y = g.layer_norm(x)
    keys = y
    if ratio > 1:
        smaller = g.reshape(g.transpose(y, 0, 2, 1), 1, width, side, side)
        keys = g.layer_norm(_tokens(g, g.conv(smaller, width, ratio, stride=ratio, padding=0)))
    x = g.add("Add", attention_heads(g, y, keys, heads), x)
    y = g.linear(g.layer_norm(x), 4 * width)
    y = g.reshape(g.transpose(y, 0, 2, 1), 1, 4 * width, side, side)
    y = g.reshape(g.conv(y, 4 * width, 3, groups=4 * width), 1, 4 * width, length)
    return g.add("Add", g.linear(g.gelu(g.transpose(y, 0, 2, 1)), width, AFTER_GELU), x)


def mobilevit(
    seed: int = 0,
    *,
    image: int = 256,
    channels: Sequence[int] = (16, 24, 48, 64, 80),
    widths: Sequence[int] = (64, 80, 96),
    depths: Sequence[int] = (2, 4, 3),
    classes: int = 1000,
) -> SeededNetwork:
    """MobileViT-XXS (Mehta and Rastegari 2021): inverted residuals, and attention between patches."""
    g = NetworkBuilder("mobilevit", seed)
    x = _conv_silu(g, g.input("x", 1, 3, image, image), channels[0], 3, 2, 1.0)
    gain = AFTER_SILU
    for depth, stride in zip(channels[:2], (1, 2), strict=True):
        x, gain = _inverted(g, x, depth, stride, gain), 1.0
    for depth, width, count in zip(channels[2:], widths, depths, strict=True):
        x = _attention_block(g, _inverted(g, x, depth, 2, 1.0), width, count)
    x = _conv_silu(g, x, 4 * channels[-1])
    return g.finish(g.gemm(g.global_pool(x), classes, AFTER_SILU))


def _inverted(g: NetworkBuilder, x: str, channels: int, stride: int, gain: float) -> str:
    inner = 2 * g.shape(x)[1]
    y = _conv_silu(g, x, inner, gain=gain)
    y = g.silu(g.conv(y, inner, 3, stride=stride, groups=inner, gain=AFTER_SILU))
    y = g.conv(y, channels, gain=AFTER_SILU)
    return g.add("Add", x, y) if stride == 1 and channels == g.shape(x)[1] else y


def _attention_block(g: NetworkBuilder, x: str, width: int, depth: int) -> str:
    _, channels, height, columns = g.shape(x)
    rows, cells = height // 2, columns // 2
    y = g.conv(_conv_silu(g, x, channels, 3, gain=1.0), width, gain=AFTER_SILU)
    # Patches of 2 x 2: [channels * rows, 2, cells, 2] -> [channels, patches, 4] -> [4, patches, channels].
    y = g.transpose(g.reshape(y, width * rows, 2, cells, 2), 0, 2, 1, 3)
    y = g.reshape(g.transpose(g.reshape(y, 1, width, rows * cells, 4), 0, 3, 2, 1), 4, rows * cells, width)
    for _ in range(depth):
        y = transformer_layer(g, y, 4, 2 * width, activation="silu", scaling="divide")
    y = g.layer_norm(y)
    y = g.transpose(g.reshape(y, 1, 4, rows * cells, width), 0, 3, 2, 1)
    y = g.transpose(g.reshape(y, width * rows, cells, 2, 2), 0, 2, 1, 3)
    y = _conv_silu(g, g.reshape(y, 1, width, height, columns), channels, gain=1.0)
    return _conv_silu(g, _joined(g, x, y), channels, 3, gain=1.2)
