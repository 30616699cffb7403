"""Blocks around one convolution, each with its norm and activation. Each function returns outputs and a description."""

from __future__ import annotations

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind

_NORMS = ("none", "none", "none", "none", "GroupNorm")  # a BatchNorm is folded into the convolution


def _finished(g: BlockBuilder, y: str, text: str) -> Made:
    """Add a norm and an activation, sometimes a residual; `text` describes the convolution."""
    x, (y, norm) = next(iter(g._inputs)), g.norm(y, *_NORMS)
    parts = [text] + ([norm] if norm != "none" else [])
    is_residual = g.shape(x) == g.shape(y) and g.choices.chance(0.3)
    if is_residual and g.choices.chance(0.5):
        y, parts = g.add("Add", y, x), [*parts, "residual"]
    y, activation = g.activation(y)
    parts += [activation] if activation != "none" else []
    if is_residual and "residual" not in parts:
        y, parts = g.add("Add", x, y), [*parts, "residual"]
    if g.choices.chance(0.1):
        y, parts = g.batch_norm(y), [*parts, "BatchNorm"]
    return [y], ", ".join(parts)


@kind("1x1 convolution")
def pointwise(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    out, stride = g.choices.channels(h), g.choices.one_of(1, 1, 1, 1, 2)
    y = g.conv(g.input("x", n, c, h, w), out, 1, stride=stride)
    return _finished(g, y, f"1x1 stride {stride}, {by(n, c, h, w)} to {out}")


@kind("3x3 convolution")
def plain(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    out = g.choices.one_of(c, g.choices.channels(h))
    return _finished(g, g.conv(g.input("x", n, c, h, w), out, 3), f"3x3, {by(n, c, h, w)} to {out}")


@kind("3x3 convolution, stride 2")
def strided(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(least=14)
    out = g.choices.one_of(c, 2 * c)
    y = g.conv(g.input("x", n, c, h, w), out, 3, stride=2)
    return _finished(g, y, f"3x3 stride 2, {by(n, c, h, w)} to {out}")


@kind("large window")
def large(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    kernel, stride = g.choices.one_of(5, 7, 9), g.choices.one_of(1, 1, 2)
    y = g.conv(g.input("x", n, c, h, w), c, kernel, stride=stride)
    return _finished(g, y, f"{kernel}x{kernel} stride {stride}, {by(n, c, h, w)} to {c}")


@kind("asymmetric window")
def asymmetric(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    kernel = g.choices.one_of((1, 3), (3, 1), (1, 5), (5, 1), (1, 7), (7, 1), (1, 9))
    out = g.choices.channels(h)
    y = g.window(g.input("x", n, c, h, w), out, kernel)
    return _finished(g, y, f"{by(*kernel)}, {by(n, c, h, w)} to {out}")


@kind("stem")
def stem(g: BlockBuilder) -> Made:
    n, size, c = g.choices.batch(), g.choices.size(least=96), g.choices.one_of(1, 3, 3, 3, 4)
    kernel, stride = g.choices.one_of((3, 1), (3, 2), (3, 2), (4, 4), (5, 2), (7, 2), (7, 4), (11, 4), (16, 16))
    out = g.choices.width(16, 64 if kernel < 16 else 768)
    padding = 0 if kernel == stride else kernel // 2
    y = g.conv(g.input("x", n, c, size, size), out, kernel, stride=stride, padding=padding)
    return _finished(g, y, f"{kernel}x{kernel} stride {stride}, {by(n, c, size, size)} to {out}")


@kind("few channels on a large map")
def few_channels(g: BlockBuilder) -> Made:
    n, size = g.choices.one_of(1, 1, 1, 2), g.choices.size(least=160)
    c, out = g.choices.one_of(2, 3, 4, 6, 8, 12, 16), g.choices.one_of(1, 2, 3, 4, 8, 12, 16, 24)
    kernel = g.choices.one_of(1, 3, 3, 5, 9)
    y = g.conv(g.input("x", n, c, size, size), out, kernel)
    return _finished(g, y, f"{kernel}x{kernel}, {by(n, c, size, size)} to {out}")


def _grouped(g: BlockBuilder, stride: int) -> Made:
    n, size = g.choices.batch(), g.choices.size(7 * stride, 160)
    each = g.choices.one_of(2, 4, 8, 8, 10, 12, 16, 16, 20, 24, 32, 40, 48, 56, 64)
    groups = g.choices.one_of(2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
    c, kernel, out = each * groups, g.choices.one_of(3, 3, 3, 3, 1, 5), g.choices.one_of(1, 1, 1, 2)
    y = g.conv(g.input("x", n, c, size, size), c * out, kernel, stride=stride, groups=groups)
    return _finished(g, y, f"{kernel}x{kernel} stride {stride}, {groups} groups of {each} to {each * out}, "
                           f"{by(n, c, size, size)}")  # fmt: skip


@kind("grouped convolution")
def grouped(g: BlockBuilder) -> Made:
    return _grouped(g, 1)


@kind("grouped convolution, stride 2")
def grouped_strided(g: BlockBuilder) -> Made:
    return _grouped(g, 2)


def _depthwise(g: BlockBuilder, stride: int, dilation: int) -> Made:
    n, c, h, w = g.choices.map(least=7 * stride)
    kernel, times = g.choices.one_of(3, 3, 3, 5, 5, 7), g.choices.one_of(1, 1, 1, 1, 2)
    y = g.conv(g.input("x", n, c, h, w), c * times, kernel, stride=stride, groups=c, dilation=dilation)
    return _finished(g, y, f"depthwise {kernel}x{kernel} stride {stride} dilation {dilation}, {by(n, c, h, w)} to "
                           f"{c * times}")  # fmt: skip


@kind("depthwise convolution")
def depthwise(g: BlockBuilder) -> Made:
    return _depthwise(g, 1, 1)


@kind("depthwise convolution, stride 2")
def depthwise_strided(g: BlockBuilder) -> Made:
    return _depthwise(g, 2, 1)


@kind("depthwise convolution, dilated")
def depthwise_dilated(g: BlockBuilder) -> Made:
    return _depthwise(g, 1, g.choices.one_of(2, 3, 4, 6))


@kind("dilated convolution")
def dilated(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(least=14, most=160)
    dilation, out = g.choices.one_of(2, 2, 3, 4, 6, 12, 18), g.choices.one_of(c, c, 256)
    groups = g.choices.one_of(1, 1, 1, 1, c // 16 or 1)
    groups = groups if c % groups == 0 and out % groups == 0 else 1
    y = g.conv(g.input("x", n, c, h, w), out, 3, dilation=dilation, groups=groups)
    return _finished(g, y, f"3x3 dilation {dilation}, {groups} groups, {by(n, c, h, w)} to {out}")


@kind("transposed convolution")
def transposed(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=256)
    kernel, stride, padding, extra = g.choices.one_of((2, 2, 0, 0), (2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0),
                                                      (4, 4, 0, 0), (3, 1, 1, 0), (8, 4, 2, 0))  # fmt: skip
    is_depthwise = g.choices.chance(0.15)
    out = c if is_depthwise else g.choices.one_of(c, max(c // 2, 1), g.choices.one_of(1, 3, 16))
    y = g.conv_transpose(g.input("x", n, c, h, w), out, kernel, stride, padding, extra, c if is_depthwise else 1)
    return _finished(g, y, f"transposed {kernel}x{kernel} stride {stride} pads {padding} output padding {extra}, "
                           f"{c if is_depthwise else 1} groups, {by(n, c, h, w)} to {out}")  # fmt: skip


@kind("1-D convolution")
def one_axis(g: BlockBuilder) -> Made:
    n, length = g.choices.batch(), g.choices.one_of(50, 100, 128, 200, 256, 500, 1000, 1024, 1500, 3000, 8000, 16000)
    c, out = (1 if g.choices.chance(0.1) else g.choices.width(16, 1024)), g.choices.width(16, 1024)
    kernel, stride = g.choices.one_of(1, 3, 3, 5, 7, 9, 10, 15, 31), g.choices.one_of(1, 1, 1, 2, 5)
    dilation = g.choices.one_of(1, 1, 1, 2, 4) if stride == 1 else 1
    pads = [(kernel - 1) * dilation, 0] if g.choices.chance(0.3) else None
    y = g.window(g.input("x", n, c, length), out, [kernel], stride=stride, dilation=dilation, pads=pads)
    return _finished(g, y, f"1-D {kernel} stride {stride} dilation {dilation} pads {pads or 'even'}, "
                           f"{by(n, c, length)} to {out}")  # fmt: skip


@kind("1-D depthwise convolution")
def one_axis_depthwise(g: BlockBuilder) -> Made:
    n, length = g.choices.batch(), g.choices.one_of(50, 100, 200, 256, 500, 1000, 2000, 4000)
    c, kernel = g.choices.width(64, 1024), g.choices.one_of(3, 5, 7, 15, 31)
    y = g.window(g.input("x", n, c, length), c, [kernel], groups=c)
    return _finished(g, y, f"1-D depthwise {kernel}, {by(n, c, length)}")


@kind("3-D convolution")
def three_axes(g: BlockBuilder) -> Made:
    n, depth, size = g.choices.one_of(1, 1, 1, 2, 4), g.choices.one_of(4, 8, 16, 32), g.choices.size(7, 112)
    c, out = g.choices.one_of(1, 3, *[g.choices.width(16, 256)] * 6), g.choices.width(16, 256)
    kernel = g.choices.one_of((3, 3, 3), (3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 3, 3), (3, 1, 1), (5, 5, 5))
    stride = g.choices.one_of(1, 1, 1, 2)
    is_depthwise = kernel == (3, 3, 3) and c > 3 and g.choices.chance(0.2)
    x = g.input("x", n, c, depth, size, size)
    y = g.window(x, c if is_depthwise else out, kernel, stride=stride, groups=c if is_depthwise else 1)
    return _finished(g, y, f"3-D {by(*kernel)} stride {stride}, {c if is_depthwise else 1} groups, "
                           f"{by(n, c, depth, size, size)} to {g.shape(y)[1]}")  # fmt: skip
