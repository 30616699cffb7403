"""Blocks that repeat in networks on maps: bottlenecks, inverted residuals, squeeze-and-excite, dense blocks."""

from __future__ import annotations

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind


@kind("bottleneck")
def bottleneck(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=112, multiple=32)
    stride, inner = g.choices.one_of(1, 1, 2), c // 4
    x = g.input("x", n, c, h, w)
    y = g.relu(g.conv(x, inner))
    y = g.relu(g.conv(y, inner, 3, stride=stride))
    y = g.conv(y, c)
    y = g.relu(g.add("Add", y, x if stride == 1 else g.conv(x, c, 1, stride=stride)))
    return [y], f"1x1 to {inner}, 3x3 stride {stride}, 1x1, residual, {by(n, c, h, w)}"


@kind("bottleneck with groups")
def grouped_bottleneck(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=112, multiple=16)
    each, stride = g.choices.one_of(4, 8, 16, 16, 24, 32), g.choices.one_of(1, 1, 2)
    c = max(c // each, 1) * each
    x = g.input("x", n, c, h, w)
    y = g.relu(g.conv(x, c))
    y, text = g.relu(g.conv(y, c, 3, stride=stride, groups=c // each)), ""
    if g.choices.chance(0.5):
        y, text = g.squeeze_excite(y, max(c // 4, 8))
    y = g.conv(y, c)
    y = g.relu(g.add("Add", y, x if stride == 1 else g.conv(x, c, 1, stride=stride)))
    return [y], f"1x1, 3x3 stride {stride} in groups of {each}, {text or 'no squeeze'}, 1x1, residual, {by(n, c, h, w)}"


def _inverted(g: BlockBuilder, stride: int) -> Made:
    n, size, times = g.choices.batch(), g.choices.size(7 * stride, 160), g.choices.one_of(3, 4, 6, 6)
    c = g.choices.one_of(16, 24, 32, 40, 48, 64, 80, 96, 112, 160, 192)
    kernel, kind = g.choices.one_of(3, 3, 5), g.choices.one_of("Relu", "Clip 0..6", "SiLU", "HardSwish")
    x = g.input("x", n, c, size, size)
    y = g.activated(g.conv(x, c * times), kind)
    y, text = g.activated(g.conv(y, c * times, kernel, stride=stride, groups=c * times), kind), "no squeeze"
    if g.choices.chance(0.5):
        y, text = g.squeeze_excite(y, max(c * times // g.choices.one_of(4, 24), 4))
    y = g.conv(y, c)
    y = g.add("Add", y, x) if stride == 1 else y
    return [
        y
    ], f"1x1 to {c * times}, depthwise {kernel}x{kernel} stride {stride}, {kind}, {text}, 1x1, {by(n, c, size, size)}"


@kind("inverted residual")
def inverted(g: BlockBuilder) -> Made:
    return _inverted(g, 1)


@kind("inverted residual, stride 2")
def inverted_strided(g: BlockBuilder) -> Made:
    return _inverted(g, 2)


@kind("squeeze-and-excite")
def squeeze(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=160)
    y, text = g.squeeze_excite(g.input("x", n, c, h, w), max(c // g.choices.one_of(4, 16), 4))
    return [y], f"{text}, {by(n, c, h, w)}"


@kind("dense block")
def dense(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=64)
    x, growth, count = g.input("x", n, c, h, w), g.choices.one_of(12, 24, 32, 48), g.choices.one_of(1, 2, 3)
    for _ in range(count):
        y = g.conv(g.relu(g.batch_norm(x)), 4 * growth)
        x = g.add("Concat", x, g.conv(g.relu(y), growth, 3), axis=1)
    return [x], f"{count} of BatchNorm, Relu, 1x1 to {4 * growth}, 3x3 to {growth}, Concat, {by(n, c, h, w)}"


@kind("cross-stage block")
def cross_stage(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=160, multiple=16)
    x = g.silu(g.conv(g.input("x", n, c, h, w), c))
    half, count = c // 2, g.choices.one_of(1, 2, 3)
    parts = g.add_many("Split", x, g.ints(half, half), outputs=2, axis=1)
    for _ in range(count):
        y = g.silu(g.conv(g.silu(g.conv(parts[-1], half, 3)), half, 3))
        parts.append(g.add("Add", parts[-1], y))
    y = g.silu(g.conv(g.add("Concat", *parts, axis=1), c))
    return [y], f"1x1, Split, {count} of two 3x3 with residual, Concat, 1x1, SiLU, {by(n, c, h, w)}"


@kind("ConvNeXt block")
def convnext(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=64)
    x, kernel = g.input("x", n, c, h, w), g.choices.one_of(7, 7, 5)
    y = g.layer_norm(g.transpose(g.conv(x, c, kernel, groups=c), 0, 2, 3, 1))
    y = g.linear(g.activated(g.linear(y, 4 * c), "GELU by erf"), c)
    return [
        g.add("Add", x, g.transpose(y, 0, 3, 1, 2))
    ], f"depthwise {kernel}x{kernel}, LayerNorm, MLP {4 * c}, {by(n, c, h, w)}"


@kind("channel shuffle")
def shuffle(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=112, multiple=8)
    x = g.input("x", n, c, h, w)
    half = c // 2
    left, right = g.add_many("Split", x, g.ints(half, half), outputs=2, axis=1)
    right = g.relu(g.conv(right, half))
    right = g.relu(g.conv(g.conv(right, half, 3, groups=half), half))
    y = g.add("Concat", left, right, axis=1)
    y = g.reshape(g.transpose(g.reshape(y, n, 2, half, h, w), 0, 2, 1, 3, 4), n, c, h, w)
    return [y], f"Split, 1x1, depthwise 3x3, 1x1, Concat, shuffle of 2 groups, {by(n, c, h, w)}"
