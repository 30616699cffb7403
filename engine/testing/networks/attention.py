"""Attention and transformer layers in the forms that exporters write."""

from __future__ import annotations

import math
from typing import Literal

from engine.testing.networks.builder import AFTER_GELU, AFTER_SILU, NetworkBuilder

Scaling = Literal["roots", "query", "divide"]


def attention_heads(
    g: NetworkBuilder,
    queries_from: str,
    keys_from: str,
    heads: int,
    *,
    mask: str = "",
    scaling: Scaling = "roots",
    key_bias: bool = True,
) -> str:
    """Add attention of `queries_from` to `keys_from`, both [N, S, E], and its output projection."""
    query = g.linear(queries_from, g.shape(queries_from)[2])
    if scaling == "query":
        query = g.add("Mul", query, g.scalar((g.shape(query)[2] // heads) ** -0.5))
    project = g.linear if key_bias else g.projection
    key, value = project(keys_from, g.shape(query)[2]), g.linear(keys_from, g.shape(query)[2])
    return g.linear(dot_product_attention(g, query, key, value, heads, mask=mask, scaling=scaling), g.shape(query)[2])


def dot_product_attention(
    g: NetworkBuilder, query: str, key: str, value: str, heads: int, *, mask: str = "", scaling: Scaling = "roots"
) -> str:
    """Add softmax(Q K^T) V over heads of [N, S, E] values, scaled as `scaling` says.

    "roots": Q and K are each multiplied by d^-1/4, and a mask has a guard against fully masked rows; "query": Q is
    scaled; "divide": the product is divided by sqrt(d).
    """
    size, length, embedding = g.shape(query)
    past, depth = g.shape(key)[1], embedding // heads
    query = g.transpose(g.reshape(query, size, length, -1, depth), 0, 2, 1, 3)
    key = g.reshape(key, size, past, -1, depth)
    value = g.transpose(g.reshape(value, size, past, -1, depth), 0, 2, 1, 3)
    if scaling == "divide":
        scores = g.add("MatMul", query, g.transpose(key, 0, 2, 3, 1))
        scores = g.add("Div", scores, g.scalar(math.sqrt(depth)))
    else:
        key = g.transpose(g.reshape(g.transpose(key, 0, 2, 1, 3), -1, past, depth), 0, 2, 1)
        key = g.reshape(key, size, heads, depth, past)
        if scaling == "roots":
            query = g.add("Mul", query, g.scalar(depth**-0.25))
            key = g.add("Mul", key, g.scalar(depth**-0.25))
        scores = g.add("MatMul", query, key)
    if mask:
        scores = g.add("Add", scores, mask)
    weights = g.add("Softmax", scores, axis=-1)
    if mask:
        weights = g.add("Where", g.add("IsNaN", weights), g.scalar(0.0), weights)
    context = g.transpose(g.add("MatMul", weights, value), 0, 2, 1, 3)
    return g.reshape(context, size, length, embedding)


def transformer_layer(
    g: NetworkBuilder,
    x: str,
    heads: int,
    inner: int,
    *,
    mask: str = "",
    activation: Literal["gelu", "silu"] = "gelu",
    scaling: Scaling = "roots",
    key_bias: bool = True,
    epsilon: float = 1e-5,
) -> str:
    """Add a layer that normalises before each part: attention, then two projections, each with its residual."""
    y = g.layer_norm(x, epsilon)
    x = g.add("Add", attention_heads(g, y, y, heads, mask=mask, scaling=scaling, key_bias=key_bias), x)
    y = g.linear(g.layer_norm(x, epsilon), inner)
    y, gain = (g.gelu(y), AFTER_GELU) if activation == "gelu" else (g.silu(y), AFTER_SILU)
    return g.add("Add", g.linear(y, g.shape(x)[2], gain), x)
