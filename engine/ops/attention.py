"""Attention: its type rule, where ONNX takes unknown lengths for 0, and its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import (
    Dimension,
    ElementType,
    Node,
    PartialShape,
    TensorType,
    ValueType,
    as_dimension,
)
from engine.ops.registry import attribute, evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, sum_dims, tensor_type
from engine.ops.tensors import Array


@infers("Attention")
def _infer_attention(node: Node) -> Sequence[ValueType]:
    """ONNX takes unknown lengths for 0 in the fourth output, and unknown ranks for scalars."""
    check_inputs(node, get_op("Attention"))
    query, key, value = (tensor_type(node, index) for index in range(3))
    ranks = {len(t.shape) for t in (query, key, value) if t.shape.rank.is_static}
    if len(ranks) > 1 or not ranks <= {3, 4}:
        fail(node, "Q, K and V must all have rank 4, [batch, heads, length, size], or 3, [batch, length, heads * size]")
    rank = ranks.pop() if ranks else None
    q, k, v = (
        _per_head(node, t.shape, rank, is_query) for t, is_query in ((query, True), (key, False), (value, False))
    )
    k, v = _with_past(node, 4, k), _with_past(node, 5, v)
    for dim, other, what in ((q[3], k[3], "head size of Q and K"), (k[2], v[2], "length of K and V")):
        if not dim.compatible(other):
            fail(node, f"the {what} must be equal, got {dim} and {other}")
    y = PartialShape.dynamic()
    if rank == 4:
        y = PartialShape([q[0], q[1], q[2], v[3]])
    elif rank == 3:
        y = PartialShape([q[0], q[2], q[1].min * v[3].min if q[1].is_static and v[3].is_static else None])
    shapes = [y, PartialShape(k), PartialShape(v), PartialShape([q[0], q[1], q[2], k[2]])]
    elements = [query.element_type, query.element_type, value.element_type, query.element_type]
    return [TensorType(e, s) for e, s in zip(elements, shapes, strict=True)][: node.num_outputs]


def _per_head(node: Node, shape: PartialShape, rank: int | None, is_query: bool) -> list[Dimension]:
    """[batch, heads, length, size], whatever the layout of the input."""
    if rank == 4 and shape.rank.is_static:
        return list(shape.dims)
    heads: Any = attribute(node, "q_num_heads" if is_query else "kv_num_heads") if rank == 3 else None
    if rank == 3 and not heads:
        fail(node, "inputs of rank 3 need q_num_heads and kv_num_heads")
    if rank != 3 or shape.rank.is_dynamic:
        return [as_dimension(None), as_dimension(heads), as_dimension(None), as_dimension(None)]
    width = shape[2]
    if width.is_static and width.min % heads:
        fail(node, f"{heads} heads do not divide the width {width} of {'Q' if is_query else 'K and V'}")
    return [shape[0], as_dimension(heads), shape[1], as_dimension(width.min // heads if width.is_static else None)]


def _with_past(node: Node, index: int, dims: list[Dimension]) -> list[Dimension]:
    """`dims` with the length of the past in input `index` added."""
    if not node.has_input(index):
        return dims
    past = tensor_type(node, index).shape
    if past.rank.is_dynamic or len(past) != 4:
        return [dims[0], dims[1], as_dimension(None), dims[3]]
    return [dims[0], dims[1], sum_dims([past[2], dims[2]]), dims[3]]


@evaluates("Attention")
def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    scale: float | None,
    is_causal: int,
    q_num_heads: int | None,
    kv_num_heads: int | None,
    softcap: float,
    softmax_precision: int | None,
    left_window_size: int,
    right_window_size: int,
    qk_matmul_output_mode: int,
) -> tuple[Array, Array, Array, Array]:
    """Scaled dot-product attention (ONNX Attention-25); a query that may see no key gets zeros."""
    if (past_key is None) != (past_value is None) or (past_key is not None and nonpad_kv_seqlen is not None):
        raise ModelError("past_key and past_value go together, and not with nonpad_kv_seqlen")
    q, k, v = (_split_heads(x, n) for x, n in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads)))
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        raise ModelError(f"Q {q.shape}, K {k.shape} and V {v.shape} differ in batch size, or K and V in heads")
    if past_key is not None and past_value is not None:
        k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    present_key, present_value = k, v
    if q.shape[1] % k.shape[1]:
        raise ModelError(f"{k.shape[1]} key heads do not divide {q.shape[1]} query heads")
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    root = q.dtype.type(np.sqrt(1 / np.sqrt(q.shape[3]) if scale is None else scale))
    stages = [np.matmul(q * root, np.swapaxes(k * root, -1, -2))]
    stages.append(np.tanh(stages[0] / q.dtype.type(softcap)) * q.dtype.type(softcap) if softcap > 0 else stages[0])
    # Keys before the first query: those of the past, or what an outer cache holds beyond the present ones.
    offset: Any = 0 if past_key is None else past_key.shape[2]
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - q.shape[2]
    window = (left_window_size, 0 if is_causal else right_window_size)
    allowed = _visible(q.shape[2], k.shape[2], offset, window)
    if nonpad_kv_seqlen is not None:
        allowed = allowed & (np.arange(k.shape[2]) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1))
    bias = np.where(allowed, q.dtype.type(0), q.dtype.type(-np.inf))
    if mask is not None:
        bias = bias + _as_bias(mask, k.shape[2], q.dtype)
    stages.append(stages[1] + bias)
    wide = stages[2].astype(ElementType.from_onnx(softmax_precision).numpy) if softmax_precision else stages[2]
    # What is masked is decided by the bias: a score of infinity less infinity would be no number.
    is_blind = np.isneginf(bias.max(axis=-1, keepdims=True, initial=-np.inf))
    stages.append(np.where(is_blind, wide.dtype.type(0), softmax(np.where(is_blind, wide.dtype.type(0), wide))))
    y = np.matmul(stages[3].astype(q.dtype), v)
    if query.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    shown = np.broadcast_to(stages[qk_matmul_output_mode], stages[3].shape).astype(q.dtype)
    return y.astype(query.dtype, copy=False), present_key, present_value, shown


def _split_heads(x: Array, heads: int | None) -> Array:
    """[batch, length, heads * size] to [batch, heads, length, size]; rank 4 stays."""
    if x.ndim == 4:
        return x
    if not heads or x.shape[2] % heads:
        raise ModelError(f"{heads} heads do not divide the width of an input of shape {x.shape}")
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _visible(queries: int, keys: int, offset: Any, window: tuple[int, int]) -> Array:
    """Which keys each query may see: those at most so far before and after its own place; -1 is no bound."""
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    before, after = window
    allowed = np.ones(ahead.shape, dtype=np.bool_)
    if before >= 0:
        allowed &= ahead >= -before
    if after >= 0:
        allowed &= ahead <= after
    return allowed


def _as_bias(mask: Array, keys: int, dtype: np.dtype[Any]) -> Array:
    """A mask as what is added to the scores; keys that it does not reach are masked."""
    if mask.dtype == np.bool_:
        mask = np.where(mask, dtype.type(0), dtype.type(-np.inf))
    missing = keys - mask.shape[-1]
    if missing <= 0:
        return mask
    rest = np.full((*mask.shape[:-1], missing), -np.inf, dtype=mask.dtype)
    return np.concatenate((mask, rest), axis=-1)


def softmax(x: Array) -> Array:
    """Softmax along the last axis, which may be of length 0."""
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    result: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result
