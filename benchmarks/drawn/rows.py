"""Products, norms, and pooling by indices, on rows."""

from __future__ import annotations

import math

import numpy as np

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind


@kind("MLP of tokens")
def mlp(g: BlockBuilder) -> Made:
    n, length, width = g.choices.batch(), g.choices.tokens(), g.choices.width(64, 1280)
    inner = width * g.choices.one_of(2, 4, 4)
    x = g.input("x", n, length, width)
    y, norm = g.row_norm(x)
    y, activation = g.activation(
        g.linear(y, inner), "Relu", "GELU by erf", "GELU by erf as nodes", "GELU by tanh", "SiLU"
    )
    return [g.add("Add", g.linear(y, width), x)], f"{norm}, {inner}, {activation}, residual, {by(n, length, width)}"


@kind("gated MLP")
def gated(g: BlockBuilder) -> Made:
    n, length, width = g.choices.batch(), g.choices.one_of(1, 4, g.choices.tokens(512)), g.choices.width(64, 1280)
    inner = width * 8 // 3 // 16 * 16
    x = g.input("x", n, length, width)
    y, norm = g.row_norm(x)
    gate, activation = g.activation(g.projection(y, inner), "SiLU", "GELU by tanh")
    y = g.projection(g.add("Mul", gate, g.projection(y, inner)), width)
    return [g.add("Add", x, y)], f"{norm}, {inner}, {activation}, residual, {by(n, length, width)}"


@kind("products of few rows")
def few_rows(g: BlockBuilder) -> Made:
    rows, width = g.choices.one_of(1, 2, 3, 4, 6, 8, 12), g.choices.width(128)
    x, text = g.input("x", rows, width), [f"{rows} rows of {width}"]
    for _ in range(g.choices.one_of(1, 2, 3)):
        columns = g.choices.width(64)
        x, activation = g.activation(g.gemm(x, columns), "none", "Relu", "GELU by erf", "SiLU")
        text.append(f"{columns} {activation}")
    return [x], ", ".join(text)


@kind("narrow products")
def narrow(g: BlockBuilder) -> Made:
    rows, width = g.choices.one_of(128, 256, 512, 1024, 4096, 8192, 16384), g.choices.one_of(4, 8, 16, 32, 64, 128, 256)
    x, text = g.input("x", rows, width), [f"{rows} rows of {width}"]
    for _ in range(g.choices.one_of(1, 2, 3)):
        columns = g.choices.one_of(1, 2, 4, 8, 10, 16, 32, 64)
        x, activation = g.activation(g.gemm(x, columns), "none", "Relu", "Tanh", "SiLU")
        text.append(f"{columns} {activation}")
    return [x], ", ".join(text)


@kind("batched products")
def batched(g: BlockBuilder) -> Made:
    count = g.choices.one_of(4, 8, 12, 16, 32, 64, 128)
    m, k, n = (g.choices.one_of(1, 4, 9, 16, 32, 49, 64, 96, 128, 196, 256, 384) for _ in range(3))
    a = g.input("a", count, m, k)
    is_transposed = g.choices.chance(0.5)
    b = g.transpose(g.input("b", count, n, k), 0, 2, 1) if is_transposed else g.input("b", count, k, n)
    y = g.add("Mul", g.add("MatMul", a, b), g.scalar(1 / math.sqrt(k)))
    return [y], f"{count} products {m}x{k}x{n}"


@kind("norm of rows")
def row_norm(g: BlockBuilder) -> Made:
    n, length, width = g.choices.batch(), g.choices.tokens(), g.choices.width(64)
    x = g.input("x", n, length, width)
    x = g.add("Add", x, g.input("residual", n, length, width)) if g.choices.chance(0.5) else x
    y, norm = g.row_norm(x)
    return [y], f"{norm}, {by(n, length, width)}"


@kind("Softmax of rows")
def softmax(g: BlockBuilder) -> Made:
    n, length = g.choices.one_of(1, 8, 64, 256, 1024), g.choices.one_of(10, 49, 100, 197, 512, 1000, 4096, 32000)
    op = g.choices.one_of("Softmax", "Softmax", "LogSoftmax")
    return [g.add(op, g.input("x", n, g.choices.one_of(1, 4, 12), length), axis=-1)], f"{op}, {n} of {length}"


@kind("embedding")
def embedding(g: BlockBuilder) -> Made:
    n, length, width = g.choices.batch(), g.choices.tokens(512), g.choices.width(128, 1024)
    words = g.constant(g.uniform((g.choices.one_of(1000, 4000), width), 1.0))
    y = g.add("Gather", words, g.index_input("ids", 1000, n, length), axis=0)
    y = g.add("Add", y, g.constant(g.uniform((1, length, width), 1.0)))
    return [g.layer_norm(y)], f"Gather, position, LayerNorm, {by(n, length, width)}"


@kind("pooling by Gather")
def gather_pooling(g: BlockBuilder) -> Made:
    n, count, width = (
        g.choices.one_of(8, 32, 128, 512),
        g.choices.one_of(4, 8, 20, 50),
        g.choices.one_of(16, 32, 64, 128),
    )
    table = g.constant(g.uniform((g.choices.one_of(1000, 10000), width), 1.0))
    rows = g.add("Gather", table, g.index_input("ids", 1000, n, count), axis=0)
    op = g.choices.one_of("ReduceMean", "ReduceSum", "ReduceMax")
    y = g.add(op, rows, g.ints(1), keepdims=0)
    return [g.gemm(y, g.choices.one_of(32, 64))], f"Gather of {count} rows, {op}, Gemm, {by(n, width)}"


@kind("pooling by scatter")
def scatter_pooling(g: BlockBuilder) -> Made:
    nodes, width = g.choices.one_of(64, 256, 1024, 4096), g.choices.one_of(16, 32, 64, 128)
    edges = nodes * g.choices.one_of(2, 4, 8)
    x = g.input("x", nodes, width)
    source, target = (g.index_input(name, nodes, edges) for name in ("source", "target"))
    messages = g.add("Gather", x, source, axis=0)
    zeros = g.constant(np.zeros((nodes, width), np.float32))
    if g.choices.chance(0.5):
        op, kind = "ScatterElements", g.choices.one_of("add", "add", "max")
        index = g.add("Expand", g.add("Unsqueeze", target, g.ints(1)), g.ints(edges, width))
        y = g.add(op, zeros, index, messages, axis=0, reduction=kind)
    else:
        op, kind = "ScatterND", "add"
        y = g.add(op, zeros, g.add("Unsqueeze", target, g.ints(1)), messages, reduction=kind)
    return [g.relu(g.gemm(y, width))], f"{op} {kind}, {edges} edges, {nodes} nodes of {width}, Gemm"


@kind("best of rows")
def best(g: BlockBuilder) -> Made:
    n, length, count = (
        g.choices.one_of(1, 4, 16),
        g.choices.one_of(1000, 8400, 25200, 32000),
        g.choices.one_of(1, 10, 100, 300),
    )
    values, _ = g.add_many("TopK", g.add("Sigmoid", g.input("x", n, length)), g.ints(count), outputs=2, axis=-1)
    return [values], f"Sigmoid, TopK {count}, {n} of {length}"
