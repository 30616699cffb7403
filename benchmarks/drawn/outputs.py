"""What networks on maps begin and end with: patches, upsampling, detection heads."""

from __future__ import annotations

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind


@kind("upsampling, Concat, convolution")
def upsampling(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=128)
    factor, mode = g.choices.one_of(2, 2, 2, 4), g.choices.one_of("nearest", "linear")
    other, out, kernel = g.choices.one_of(c, max(c // 2, 8)), max(c // 2, 8), g.choices.one_of(1, 3, 3)
    x, skip = g.input("x", n, c, h, w), g.input("skip", n, other, h * factor, w * factor)
    y = g.add("Concat", g.resize(x, factor, mode), skip, axis=1)
    y, activation = g.activation(g.conv(y, out, kernel), "Relu", "SiLU")
    return [
        y
    ], f"Resize by {factor} {mode}, Concat with {other}, {kernel}x{kernel} to {out}, {activation}, {by(n, c, h, w)}"


@kind("resize")
def resizing(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=160)
    factor, mode = g.choices.one_of(2, 2, 4, 8), g.choices.one_of("nearest", "linear", "linear")
    c = g.choices.one_of(c, g.choices.one_of(1, 3, 19, 21))
    return [g.resize(g.input("x", n, c, h, w), factor, mode)], f"Resize by {factor} {mode}, {by(n, c, h, w)}"


@kind("pixel shuffle")
def pixel_shuffle(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=256)
    factor, out = g.choices.one_of(2, 2, 3, 4), g.choices.one_of(1, 3, 3, 16, 32)
    y = g.conv(g.input("x", n, c, h, w), out * factor**2, 3)
    return [
        g.add("DepthToSpace", y, blocksize=factor, mode="CRD")
    ], f"3x3 to {out * factor**2}, DepthToSpace {factor}, {by(n, c, h, w)}"


@kind("segmentation output")
def segmentation(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=128)
    classes, factor = g.choices.one_of(2, 5, 19, 21, 150), g.choices.one_of(1, 4, 8)
    y = g.conv(g.input("x", n, c, h, w), classes)
    y = g.resize(y, factor, "linear") if factor > 1 else y
    return [g.add("Softmax", y, axis=1)], f"1x1 to {classes}, Resize by {factor}, Softmax of channels, {by(n, c, h, w)}"


@kind("detection head")
def detection(g: BlockBuilder) -> Made:
    n, size = g.choices.one_of(1, 1, 1, 2, 4), g.choices.one_of(20, 32, 40, 52, 64, 80)
    c, classes, anchors = (
        g.choices.one_of(32, 48, 64, 96, 128),
        g.choices.one_of(1, 2, 4, 20, 80),
        g.choices.one_of(1, 2, 3, 6),
    )
    is_separable = g.choices.chance(0.5)
    scores, boxes = [], []
    for level in range(g.choices.one_of(2, 3, 3, 4)):
        side = max(size >> level, 4)
        x = g.input(f"x{level}", n, c, side, side)
        for columns, found in ((anchors * classes, scores), (anchors * 4, boxes)):
            y = g.relu(g.conv(x, c, 3, groups=c)) if is_separable else g.relu(g.conv(x, c, 3))
            y = g.conv(y, columns, 1 if is_separable else 3)
            found.append(g.reshape(g.transpose(y, 0, 2, 3, 1), n, -1, columns // anchors))
    score, box = g.add("Sigmoid", g.add("Concat", *scores, axis=1)), g.add("Concat", *boxes, axis=1)
    near, far = g.add_many("Split", box, g.ints(2, 2), outputs=2, axis=2)
    anchor = g.constant(g.uniform((1, g.shape(near)[1], 2), 1.0))
    corner = [g.add("Sub", anchor, near), g.add("Add", anchor, g.add("Exp", g.add("Mul", far, g.scalar(0.2))))]
    return [score, g.add("Concat", *corner, axis=2)], (
        f"{len(scores)} levels from {by(n, c, size, size)}, {'depthwise 3x3 and 1x1' if is_separable else 'two 3x3'}, "
        f"{anchors} anchors, {classes} classes, boxes")  # fmt: skip


@kind("patches and windows")
def patches(g: BlockBuilder) -> Made:
    n, c, size = g.choices.batch(), g.choices.width(32, 384), g.choices.one_of(14, 28, 56, 64)
    window = 7 if size % 7 == 0 else 8
    x = g.layer_norm(g.input("x", n, size * size, c))
    y, shift = g.reshape(x, n, size, size, c), window // 2
    if g.choices.chance(0.5):
        for axis in (1, 2):
            parts = [g.add("Slice", y, g.ints(a), g.ints(b), g.ints(axis)) for a, b in ((shift, size), (0, shift))]
            y = g.add("Concat", *parts, axis=axis)
    count = size // window
    y = g.reshape(y, n, count, window, count, window, c)
    y = g.reshape(g.transpose(y, 0, 1, 3, 2, 4, 5), -1, window * window, c)
    return [g.linear(y, c)], f"LayerNorm, windows of {window}, projection, {by(n, size * size, c)}"


@kind("patch embedding")
def patch_embedding(g: BlockBuilder) -> Made:
    n, patch, size = (
        g.choices.batch(),
        g.choices.one_of(4, 8, 14, 16, 16, 32),
        g.choices.one_of(224, 224, 256, 384, 448),
    )
    width = g.choices.width(64, 1024)
    size = size // patch * patch
    y = g.conv(g.input("x", n, 3, size, size), width, patch, stride=patch, padding=0)
    y = g.transpose(g.reshape(y, n, width, -1), 0, 2, 1)
    position = g.constant(g.uniform((1, g.shape(y)[1], width), 0.1))
    return [
        g.layer_norm(g.add("Add", y, position))
    ], f"patches of {patch}, {by(n, 3, size, size)} to {width}, LayerNorm"
