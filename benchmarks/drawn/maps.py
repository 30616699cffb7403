"""Pooling, norms and pointwise chains on maps."""

from __future__ import annotations

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind


@kind("window pooling")
def pooling(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    op, ceil = g.choices.one_of("MaxPool", "MaxPool", "AveragePool"), int(g.choices.chance(0.1))
    kernel, stride, padding = g.choices.one_of((2, 2, 0), (3, 2, 1), (3, 2, 0), (3, 1, 1), (5, 1, 2))
    if kernel == 3 and stride == 2 and padding == 0 and h % 2 == 0 and not ceil:
        ceil = int(g.choices.chance(0.5))
    extra = {"count_include_pad": g.choices.one_of(0, 1)} if op == "AveragePool" else {}
    y = g.add(op, g.input("x", n, c, h, w), kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4,
              ceil_mode=ceil, **extra)  # fmt: skip
    settings = "".join(f" {name} {value}" for name, value in extra.items())
    return [y], f"{op} {kernel}x{kernel} stride {stride} pads {padding} ceil {ceil}{settings}, {by(n, c, h, w)}"


@kind("pyramid pooling")
def pyramid(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(most=64, multiple=2)
    x = g.silu(g.conv(g.input("x", n, c, h, w), c // 2))
    parts = [x]
    for _ in range(3):
        parts.append(g.max_pool(parts[-1], 5, 1, 2))
    y = g.silu(g.conv(g.add("Concat", *parts, axis=1), c))
    return [y], f"1x1, three 5x5 MaxPool of stride 1, Concat, 1x1, SiLU, {by(n, c, h, w)}"


@kind("global pooling")
def global_pooling(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    x, kind = g.input("x", n, c, h, w), g.choices.one_of("mean", "max", "both", "classifier", "statistics")
    if kind == "classifier":
        return [g.gemm(g.global_pool(x), g.choices.one_of(10, 100, 1000))], f"mean, Gemm, {by(n, c, h, w)}"
    if kind == "statistics":
        mean = g.add("ReduceMean", x, g.ints(2, 3), keepdims=1)
        gap = g.add("Sub", x, mean)
        variance = g.add("ReduceMean", g.add("Mul", gap, gap), g.ints(2, 3), keepdims=1)
        deviation = g.add("Sqrt", g.add("Add", variance, g.scalar(1e-5)))
        return [g.add("Concat", mean, deviation, axis=1)], f"mean and standard deviation, {by(n, c, h, w)}"
    outputs = [g.add("GlobalAveragePool", x)] if kind != "max" else []
    outputs += [g.add("GlobalMaxPool", x)] if kind != "mean" else []
    return outputs, f"{kind}, {by(n, c, h, w)}"


@kind("norm of maps")
def map_norm(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map(multiple=8)
    y, norm = g.norm(g.input("x", n, c, h, w), "BatchNorm", "GroupNorm", "GroupNorm", "InstanceNorm")
    y, activation = g.activation(y)
    return [y], f"{norm}, {activation}, {by(n, c, h, w)}"


@kind("activation of maps")
def activations(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    x = g.input("x", n, c, h, w)
    y, first = g.activation(x, "Relu", "Clip 0..6", "SiLU", "GELU by erf as nodes", "GELU by tanh", "HardSwish",
                            "Sigmoid", "Tanh", "Elu", "Softplus", "Mish")  # fmt: skip
    return [y], f"{first}, {by(n, c, h, w)}"


@kind("pointwise chain")
def chain(g: BlockBuilder) -> Made:
    n, c, h, w = g.choices.map()
    x, y, count = g.input("x", n, c, h, w), g.input("y", n, c, h, w), g.choices.one_of(1, 2, 3)
    scale = g.constant(g.uniform((c, 1, 1), 1.0))
    for _ in range(count):
        x = g.add(g.choices.one_of("Add", "Mul", "Sub", "Max"), x, g.choices.one_of(y, scale))
        x, _name = g.activation(x, "none", "Relu", "SiLU", "Sigmoid", "Tanh")
    return [x], f"{count} of two operands and an activation, {by(n, c, h, w)}"
