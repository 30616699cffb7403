"""Attention of tokens and channels, with masks, relative positions and past keys."""

from __future__ import annotations

import numpy as np

from drawn.builder import BlockBuilder
from drawn.kinds import Made, by, kind

_DEPTHS = (32, 32, 64, 64, 64, 80, 96, 128)


def _heads(g: BlockBuilder, x: str, heads: int) -> str:
    n, length, width = g.shape(x)
    return g.transpose(g.reshape(x, n, length, heads, width // heads), 0, 2, 1, 3)


def _joined(g: BlockBuilder, x: str) -> str:
    n, heads, length, depth = g.shape(x)
    return g.reshape(g.transpose(x, 0, 2, 1, 3), n, length, heads * depth)


def _attention(g: BlockBuilder, query: str, key: str, value: str, heads: int, *added: str) -> str:
    """Softmax(Q K^T / sqrt(d) + what is added) V, from and to [N, S, E]."""
    query, value = _heads(g, query, heads), _heads(g, value, heads)
    n, length, width = g.shape(key)
    key = g.transpose(g.reshape(key, n, length, heads, width // heads), 0, 2, 3, 1)
    scale = g.scalar((width // heads) ** -0.5)
    if g.choices.chance(0.5):
        scores = g.add("MatMul", g.add("Mul", query, scale), key)
    else:
        scores = g.add("Mul", g.add("MatMul", query, key), scale)
    for each in added:
        scores = g.add("Add", scores, each)
    return _joined(g, g.add("MatMul", g.add("Softmax", scores, axis=-1), value))


def _drawn(g: BlockBuilder, most: int = 1024) -> tuple[int, int, int, int]:
    """Batch, tokens, heads, and the width of all heads."""
    heads = g.choices.one_of(1, 2, 3, 4, 6, 8, 8, 12, 16)
    return g.choices.batch(), g.choices.tokens(most), heads, heads * g.choices.one_of(*_DEPTHS)


def _projected(g: BlockBuilder, x: str) -> tuple[str, str, str]:
    """Query, key and value: by one product or by three."""
    width = g.shape(x)[2]
    if g.choices.chance(0.5):
        return g.linear(x, width), g.linear(x, width), g.linear(x, width)
    query, key, value = g.add_many("Split", g.linear(x, 3 * width), g.ints(width, width, width), outputs=3, axis=2)
    return query, key, value


@kind("self-attention")
def self_attention(g: BlockBuilder) -> Made:
    n, length, heads, width = _drawn(g)
    x = g.input("x", n, length, width)
    y = g.linear(_attention(g, *_projected(g, g.layer_norm(x)), heads), width)
    return [g.add("Add", y, x)], f"LayerNorm, {heads} heads of {width // heads}, residual, {by(n, length, width)}"


@kind("attention without projections")
def bare_attention(g: BlockBuilder) -> Made:
    n, length, heads, width = _drawn(g)
    values = [g.input(name, n, length, width) for name in "qkv"]
    return [_attention(g, *values, heads)], f"{heads} heads of {width // heads}, {by(n, length, width)}"


@kind("attention with a mask")
def masked_attention(g: BlockBuilder) -> Made:
    n, length, heads, width = _drawn(g, 512)
    x, is_causal = g.input("x", n, length, width), g.choices.chance(0.5)
    if is_causal:
        mask = g.constant(np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1))
    else:
        kept = g.add("Cast", g.index_input("mask", 2, n, length), to=1)
        kept = g.add("Unsqueeze", kept, g.ints(1, 2))
        mask = g.add("Mul", g.add("Sub", g.scalar(1.0), kept), g.scalar(-10000.0))
    y = g.linear(_attention(g, *_projected(g, x), heads, mask), width)
    kind = "causal" if is_causal else "padding"
    return [
        g.layer_norm(g.add("Add", y, x))
    ], f"{kind} mask, {heads} heads of {width // heads}, LayerNorm, {by(n, length, width)}"


@kind("attention with relative positions")
def relative_attention(g: BlockBuilder) -> Made:
    is_window = g.choices.chance(0.5)
    heads = g.choices.one_of(3, 4, 6, 8, 12)
    depth = g.choices.one_of(32, 32, 64)
    n, length = (g.choices.one_of(4, 16, 64), 49) if is_window else (g.choices.batch(), g.choices.tokens(512))
    x, width = g.input("x", n, length, heads * depth), heads * depth
    if is_window:  # a table of the window's offsets, as exporters leave it after folding: a constant
        bias = g.constant(g.uniform((1, heads, length, length), 0.5))
    else:  # buckets of distances of T5: a Gather of a table
        distance = np.abs(np.arange(length)[:, None] - np.arange(length))
        bucket = np.minimum(distance, 8 + np.log2(np.maximum(distance, 1)).astype(np.int64)).astype(np.int64)
        table = g.constant(g.uniform((32, heads), 0.5))
        bias = g.transpose(g.add("Gather", table, g.constant(np.minimum(bucket, 31)), axis=0), 2, 0, 1)
        bias = g.add("Unsqueeze", bias, g.ints(0))
    y = g.linear(_attention(g, *_projected(g, g.row_norm(x)[0]), heads, bias), width)
    return [
        g.add("Add", y, x)
    ], f"{'windows' if is_window else 'buckets'}, {heads} heads of {depth}, {by(n, length, width)}"


@kind("cross-attention")
def cross_attention(g: BlockBuilder) -> Made:
    n, length, heads, width = _drawn(g, 256)
    other, source = g.choices.tokens(), g.choices.one_of(width, 512, 768)
    x, context = g.input("x", n, length, width), g.input("context", n, other, source)
    query, key, value = g.linear(g.layer_norm(x), width), g.linear(context, width), g.linear(context, width)
    y = g.linear(_attention(g, query, key, value, heads), width)
    return [g.add("Add", y, x)], f"{heads} heads of {width // heads}, {by(n, length, width)} to {by(n, other, source)}"


@kind("attention of few queries")
def few_queries(g: BlockBuilder) -> Made:
    n, past, heads, width = _drawn(g)
    length = g.choices.one_of(1, 1, 2, 4, 8)
    x = g.input("x", n, length, width)
    keys, values = g.input("keys", n, past, width), g.input("values", n, past, width)
    query, key, value = _projected(g, x)
    key, value = g.add("Concat", keys, key, axis=1), g.add("Concat", values, value, axis=1)
    y = g.linear(_attention(g, query, key, value, heads), width)
    return [g.add("Add", y, x)], f"{length} queries, {past} past keys, {heads} heads of {width // heads}, batch {n}"


@kind("attention of channels")
def channel_attention(g: BlockBuilder) -> Made:
    n, heads, depth = g.choices.batch(), g.choices.one_of(2, 4, 8), g.choices.one_of(16, 24, 32, 48)
    size, c = g.choices.size(14, 128), heads * depth
    x = g.input("x", n, c, size, size)
    qkv = g.conv(x, 3 * c)
    parts = g.add_many("Split", qkv, g.ints(c, c, c), outputs=3, axis=1)
    query, key, value = (g.reshape(part, n, heads, depth, size * size) for part in parts)
    scores = g.add("MatMul", query, g.transpose(key, 0, 1, 3, 2))
    weights = g.add("Softmax", g.add("Mul", scores, g.scalar(1 / size)), axis=-1)
    y = g.reshape(g.add("MatMul", weights, value), n, c, size, size)
    return [g.conv(y, c)], f"{heads} heads of {depth} channels, {by(n, c, size, size)}"
