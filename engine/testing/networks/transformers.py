"""Transformers of text, images and speech, and ConvNeXt, which borrows their layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.testing.networks.attention import attention_heads, dot_product_attention, transformer_layer
from engine.testing.networks.builder import AFTER_GELU, Array, NetworkBuilder, SeededNetwork

_LOWEST = float(np.finfo(np.float32).min)


def bert_base(
    seed: int = 0,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    inner: int = 3072,
    tokens: int = 128,
    vocabulary: int = 30522,
) -> SeededNetwork:
    """BERT-base's encoder (Devlin et al. 2018) with its embeddings, for ids and a mask of [1, tokens] int64."""
    g = NetworkBuilder("bert_base", seed)
    ids = g.index_input("input_ids", vocabulary, 1, tokens)
    visible = g.index_input("attention_mask", 2, 1, tokens)
    x = g.add("Gather", g.weight(vocabulary, hidden, fan_in=1), ids, axis=0)
    x = g.add("Add", x, g.constant(g.uniform((1, tokens, hidden), 0.3)))
    x = g.layer_norm(g.add("Add", x, g.constant(g.uniform((1, tokens, hidden), 0.3))), 1e-12)
    mask = _padding_mask(g, visible)
    for _ in range(layers):
        x = g.layer_norm(g.add("Add", attention_heads(g, x, x, heads, mask=mask), x), 1e-12)
        y = g.linear(g.gelu(g.linear(x, inner)), hidden, AFTER_GELU)
        x = g.layer_norm(g.add("Add", y, x), 1e-12)
    return g.finish(x)


def _padding_mask(g: NetworkBuilder, visible: str) -> str:
    """The additive mask from [1, tokens] of 0 and 1, by the Gather of indices that exporters write."""
    tokens = g.shape(visible)[1]
    indices = np.zeros((1, 1, 1, tokens, 2), np.int64)
    indices[..., 1] = np.arange(tokens)
    gathered = g.add("GatherND", g.add("Cast", visible, to=9), g.constant(indices), batch_dims=0)
    allowed = g.add("And", g.constant(np.ones((1, 1, tokens, 1), np.bool_)), gathered)
    return g.add("Where", allowed, g.scalar(0.0), g.scalar(_LOWEST))


def gpt2_blocks(
    seed: int = 0, *, layers: int = 12, hidden: int = 768, heads: int = 12, tokens: int = 64
) -> SeededNetwork:
    """The blocks of GPT-2 (Radford et al. 2019) on embeddings [1, tokens, hidden], with its final normalisation."""
    g = NetworkBuilder("gpt2_blocks", seed)
    x = g.add("Add", g.input("inputs_embeds", 1, tokens, hidden), g.constant(g.uniform((1, tokens, hidden), 0.3)))
    hidden_after = np.triu(np.full((tokens, tokens), _LOWEST, np.float32), 1)[None, None]
    for _ in range(layers):
        x = g.add("Add", _causal_attention(g, g.layer_norm(x), heads, hidden_after), x)
        y = _flat_gemm(g, _gelu_tanh(g, _flat_gemm(g, g.layer_norm(x), 4 * hidden)), hidden, AFTER_GELU)
        x = g.add("Add", x, y)
    return g.finish(g.reshape(g.layer_norm(x), -1, tokens, hidden))


def _flat_gemm(g: NetworkBuilder, x: str, columns: int, gain: float = 1.0) -> str:
    size, length, rows = g.shape(x)
    return g.reshape(g.gemm(g.reshape(x, -1, rows), columns, gain, transposed=False), size, length, columns)


def _causal_attention(g: NetworkBuilder, x: str, heads: int, mask: Array) -> str:
    hidden = g.shape(x)[2]
    query, key, value = g.add_many("Split", _flat_gemm(g, x, 3 * hidden), outputs=3, axis=2, num_outputs=3)
    context = dot_product_attention(g, query, key, value, heads, mask=g.constant(mask))
    return _flat_gemm(g, context, hidden)


def _gelu_tanh(g: NetworkBuilder, x: str) -> str:
    cubed = g.add("Mul", g.add("Pow", x, g.scalar(3.0)), g.scalar(0.044715))
    inner = g.add("Tanh", g.add("Mul", g.add("Add", x, cubed), g.scalar(0.7978845834732056)))
    return g.add("Mul", g.add("Mul", x, g.scalar(0.5)), g.add("Add", inner, g.scalar(1.0)))


def vit_b16(
    seed: int = 0,
    *,
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    classes: int = 1000,
) -> SeededNetwork:
    """ViT-B/16 (Dosovitskiy et al. 2020), classifying by its first token."""
    g = NetworkBuilder("vit_b16", seed)
    x = g.conv(g.input("x", 1, 3, image, image), hidden, patch, stride=patch, padding=0)
    patches = (image // patch) ** 2
    x = g.transpose(g.reshape(x, 1, hidden, patches), 0, 2, 1)
    x = g.add("Concat", g.constant(g.uniform((1, 1, hidden), 1.0)), x, axis=1)
    x = g.add("Add", x, g.constant(g.uniform((1, patches + 1, hidden), 0.3)))
    mask = g.constant(np.zeros((1, 1, patches + 1, patches + 1), np.float32))
    for _ in range(layers):
        x = transformer_layer(g, x, heads, 4 * hidden, mask=mask, epsilon=1e-12)
    first = g.add("Gather", g.layer_norm(x, 1e-12), g.constant(np.array(0, np.int64)), axis=1)
    return g.finish(g.gemm(first, classes))


def convnext_t(
    seed: int = 0,
    *,
    image: int = 224,
    widths: Sequence[int] = (96, 192, 384, 768),
    depths: Sequence[int] = (3, 3, 9, 3),
    classes: int = 1000,
) -> SeededNetwork:
    """ConvNeXt-T (Liu et al. 2022), with all the transposes around its normalisations and projections."""
    g = NetworkBuilder("convnext_t", seed)
    x = _channels_first(g, g.layer_norm(_channels_last(g, g.conv(g.input("x", 1, 3, image, image), widths[0], 4,
                                                                 stride=4, padding=0))))  # fmt: skip
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            x = _channels_first(g, g.layer_norm(_channels_last(g, x)))
            x = g.conv(x, width, 2, stride=2, padding=0)
        for _ in range(depth):
            y = g.layer_norm(_channels_last(g, g.conv(x, width, 7, groups=width)))
            y = g.linear(g.gelu(g.linear(y, 4 * width)), width, AFTER_GELU)
            y = g.add("Mul", g.constant(g.uniform((width,), 0.5)), y)
            x = g.add("Add", x, _channels_first(g, y))
    pooled = g.add("ReduceMean", x, g.ints(-2, -1), keepdims=0, noop_with_empty_axes=0)
    return g.finish(g.gemm(g.layer_norm(pooled), classes))


def _channels_last(g: NetworkBuilder, x: str) -> str:
    return g.transpose(x, 0, 2, 3, 1)


def _channels_first(g: NetworkBuilder, x: str) -> str:
    return g.transpose(x, 0, 3, 1, 2)


def whisper_tiny_encoder(
    seed: int = 0, *, mels: int = 80, frames: int = 3000, layers: int = 4, hidden: int = 384, heads: int = 6
) -> SeededNetwork:
    """The encoder of Whisper-tiny (Radford et al. 2022) on a spectrogram [1, mels, frames]."""
    g = NetworkBuilder("whisper_tiny_encoder", seed)
    x = g.gelu(g.conv(g.input("x", 1, mels, frames), hidden, 3))
    x = g.gelu(g.conv(x, hidden, 3, stride=2, gain=AFTER_GELU))
    x = g.transpose(x, 0, 2, 1)
    x = g.add("Add", x, g.constant(g.uniform(g.shape(x)[1:], 0.7)))
    for _ in range(layers):
        x = transformer_layer(g, x, heads, 4 * hidden, scaling="query", key_bias=False)
    return g.finish(g.layer_norm(x))
