"""Convolutional networks that classify images: residual, inverted residual, squeezed, dense and plain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.testing.networks.builder import AFTER_RELU, AFTER_SILU, NetworkBuilder, SeededNetwork

# The scale of the last layer of a residual branch, so that sums over many blocks keep unit scale.
_BRANCH = 0.4


def resnet50(
    seed: int = 0, *, image: int = 224, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), classes: int = 1000
) -> SeededNetwork:
    """ResNet-50 with the stride in the 3x3 convolution (He et al. 2015, and its common variant 1.5)."""
    g = NetworkBuilder("resnet50", seed)
    x = g.relu(g.conv(g.input("x", 1, 3, image, image), width, 7, stride=2))
    x = g.max_pool(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = _bottleneck(g, x, width * 2**stage, stride, project=not index)
    return g.finish(g.gemm(g.global_pool(x), classes))


def _bottleneck(g: NetworkBuilder, x: str, inner: int, stride: int, project: bool) -> str:
    y = g.relu(g.conv(x, inner, gain=AFTER_RELU))
    y = g.relu(g.conv(y, inner, 3, stride=stride, gain=AFTER_RELU))
    y = g.conv(y, 4 * inner, gain=AFTER_RELU * _BRANCH)
    shortcut = g.conv(x, 4 * inner, stride=stride, gain=AFTER_RELU) if project else x
    return g.relu(g.add("Add", y, shortcut))


# Expansion, output channels, repetitions and first stride of each stage.
_MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    seed: int = 0,
    *,
    image: int = 224,
    stem: int = 32,
    stages: Sequence[tuple[int, int, int, int]] = _MOBILE_STAGES,
    last: int = 1280,
    classes: int = 1000,
) -> SeededNetwork:
    """MobileNetV2 (Sandler et al. 2018); `stages` has expansion, channels, blocks and stride."""
    g = NetworkBuilder("mobilenet_v2", seed)
    x = _relu6(g, g.conv(g.input("x", 1, 3, image, image), stem, 3, stride=2))
    gain = AFTER_RELU
    for expansion, channels, count, first_stride in stages:
        for index in range(count):
            x = _inverted_residual(g, x, expansion, channels, 1 if index else first_stride, gain)
            gain = 1.0
    x = _relu6(g, g.conv(x, last))
    return g.finish(g.gemm(g.global_pool(x), classes, gain=AFTER_RELU))


def _relu6(g: NetworkBuilder, x: str) -> str:
    return g.add("Clip", x, g.scalar(0.0), g.scalar(6.0))


def _inverted_residual(
    g: NetworkBuilder, x: str, expansion: int, channels: int, stride: int, gain: float, kernel: int = 3
) -> str:
    depth = g.shape(x)[1]
    y = x
    if expansion != 1:
        y, gain = _relu6(g, g.conv(y, expansion * depth, gain=gain)), AFTER_RELU
    y = _relu6(g, g.conv(y, expansion * depth, kernel, stride=stride, groups=expansion * depth, gain=gain))
    same = stride == 1 and channels == depth
    y = g.conv(y, channels, gain=AFTER_RELU * (_BRANCH if same else 1.0))
    return g.add("Add", x, y) if same else y


# Expansion, kernel, output channels, repetitions and first stride of each stage.
_EFFICIENT_STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)  # fmt: skip


def efficientnet_b0(
    seed: int = 0,
    *,
    image: int = 224,
    stem: int = 32,
    stages: Sequence[tuple[int, int, int, int, int]] = _EFFICIENT_STAGES,
    last: int = 1280,
    classes: int = 1000,
    ceil_pool: bool = False,
) -> SeededNetwork:
    """EfficientNet-B0 (Tan and Le 2019): depthwise convolutions, squeeze-and-excite, SiLU.

    With `ceil_pool` it ends like some exports: an AveragePool in ceil mode with a window far larger than the image.
    """
    g = NetworkBuilder("efficientnet_b0", seed)
    x = g.silu(g.conv(g.input("x", 1, 3, image, image), stem, 3, stride=2))
    gain = AFTER_SILU
    for expansion, kernel, channels, count, first_stride in stages:
        for index in range(count):
            x = _squeezed_residual(g, x, expansion, kernel, channels, 1 if index else first_stride, gain)
            gain = 1.0
    x = g.silu(g.conv(x, last))
    if not ceil_pool:
        return g.finish(g.gemm(g.global_pool(x), classes, gain=AFTER_SILU))
    pooled = g.add("AveragePool", x, kernel_shape=[last] * 2, strides=[last] * 2, ceil_mode=1, count_include_pad=1)
    return g.finish(g.gemm(g.reshape(pooled, 1, last), classes, gain=AFTER_SILU))


def efficientnet_lite0(
    seed: int = 0,
    *,
    image: int = 224,
    stem: int = 32,
    stages: Sequence[tuple[int, int, int, int, int]] = _EFFICIENT_STAGES,
    last: int = 1280,
    classes: int = 1000,
) -> SeededNetwork:
    """EfficientNet-Lite0: EfficientNet-B0 for 8-bit devices, with ReLU6 and without squeeze-and-excite."""
    g = NetworkBuilder("efficientnet_lite0", seed)
    x = _relu6(g, g.conv(g.input("x", 1, 3, image, image), stem, 3, stride=2))
    gain = AFTER_RELU
    for expansion, kernel, channels, count, first_stride in stages:
        for index in range(count):
            x = _inverted_residual(g, x, expansion, channels, 1 if index else first_stride, gain, kernel)
            gain = 1.0
    x = _relu6(g, g.conv(x, last))
    return g.finish(g.gemm(g.global_pool(x), classes, gain=AFTER_RELU))


def _squeezed_residual(
    g: NetworkBuilder, x: str, expansion: int, kernel: int, channels: int, stride: int, gain: float
) -> str:
    depth = g.shape(x)[1]
    inner = expansion * depth
    y = x
    if expansion != 1:
        y, gain = g.silu(g.conv(y, inner, gain=gain)), AFTER_SILU
    y = g.silu(g.conv(y, inner, kernel, stride=stride, groups=inner, gain=gain))
    squeezed = g.add("ReduceMean", y, g.ints(2, 3), keepdims=1, noop_with_empty_axes=0)
    squeezed = g.silu(g.conv(squeezed, max(1, depth // 4), gain=AFTER_SILU))
    y = g.add("Mul", y, g.add("Sigmoid", g.conv(squeezed, inner, gain=AFTER_SILU)))
    same = stride == 1 and channels == depth
    # The gate is near one half.
    y = g.conv(y, channels, gain=2 * AFTER_SILU * (_BRANCH if same else 1.0))
    return g.add("Add", y, x) if same else y


# Squeezed and expanded channels of each block; a pooling precedes those listed second.
_FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def squeezenet(
    seed: int = 0,
    *,
    image: int = 224,
    stem: int = 64,
    fires: Sequence[tuple[int, int]] = _FIRES,
    pooled: Sequence[int] = (0, 2, 4),
    classes: int = 1000,
) -> SeededNetwork:
    """SqueezeNet 1.1 (Iandola et al. 2016); a MaxPool in ceil mode goes before the blocks in `pooled`."""
    g = NetworkBuilder("squeezenet", seed)
    x = g.relu(g.conv(g.input("x", 1, 3, image, image), stem, 3, stride=2, padding=0))
    for index, (squeezed, expanded) in enumerate(fires):
        if index in pooled:
            x = g.max_pool(x, 3, 2, ceil=True)
        x = g.relu(g.conv(x, squeezed, gain=AFTER_RELU))
        sides = [g.relu(g.conv(x, expanded, kernel, gain=AFTER_RELU)) for kernel in (1, 3)]
        x = g.add("Concat", *sides, axis=1)
    x = g.relu(g.conv(x, classes, gain=AFTER_RELU))
    return g.finish(g.global_pool(x))


def densenet121(
    seed: int = 0,
    *,
    image: int = 224,
    stem: int = 64,
    growth: int = 32,
    blocks: Sequence[int] = (6, 12, 24, 16),
    classes: int = 1000,
) -> SeededNetwork:
    """DenseNet-121 (Huang et al. 2016); BatchNormalizations after a Concat cannot be fused into a Conv."""
    g = NetworkBuilder("densenet121", seed)
    x = g.relu(g.conv(g.input("x", 1, 3, image, image), stem, 7, stride=2))
    x = g.max_pool(x, 3, 2, 1)
    for stage, count in enumerate(blocks):
        parts = [x]
        for _ in range(count):
            y = g.add("Concat", *parts, axis=1) if len(parts) > 1 else x
            y = g.relu(g.conv(_normalized(g, y), 4 * growth, gain=AFTER_RELU))
            parts.append(g.conv(y, growth, 3, gain=AFTER_RELU))
        x = _normalized(g, g.add("Concat", *parts, axis=1))
        if stage < len(blocks) - 1:
            x = g.conv(x, g.shape(x)[1] // 2, gain=AFTER_RELU)
            x = g.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1)
    return g.finish(g.gemm(g.global_pool(x), classes, gain=AFTER_RELU))


def _normalized(g: NetworkBuilder, x: str) -> str:
    channels = g.shape(x)[1]
    scale = g.constant(g.uniform((channels,), 0.1) + np.float32(1))
    variance = g.constant(g.uniform((channels,), 0.1) + np.float32(1))
    return g.relu(g.add("BatchNormalization", x, scale, g.bias(channels), g.bias(channels), variance, epsilon=1e-5))


_VGG_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def vgg19(
    seed: int = 0,
    *,
    image: int = 224,
    stages: Sequence[tuple[int, int]] = _VGG_STAGES,
    inner: int = 4096,
    classes: int = 1000,
) -> SeededNetwork:
    """VGG-19 (Simonyan and Zisserman 2014): 19 layers of 3x3 convolutions and large fully connected ones."""
    g = NetworkBuilder("vgg19", seed)
    x, gain = g.input("x", 1, 3, image, image), 1.0
    for channels, count in stages:
        for _ in range(count):
            x, gain = g.relu(g.conv(x, channels, 3, gain=gain)), AFTER_RELU
        x = g.max_pool(x, 2, 2)
    _, depth, height, width = g.shape(x)
    x = g.reshape(x, 1, depth * height * width)
    for _ in range(2):
        x = g.relu(g.gemm(x, inner, gain=AFTER_RELU))
    return g.finish(g.gemm(x, classes, gain=AFTER_RELU))
