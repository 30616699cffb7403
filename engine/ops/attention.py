"""Attention: its spec, its type rule, because ONNX treats unknown lengths as 0, and its evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import (
    Dimension,
    ElementType,
    Node,
    Output,
    PartialShape,
    TensorType,
    ValueType,
    as_dimension,
    bf16,
    f16,
    f32,
    f64,
)
from engine.ops.axes import Axes, maps_axes, rank_of_value
from engine.ops.cost import lengths_of, more_time, operations, size_of
from engine.ops.precision import widened
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, sum_dims, tensor_type
from engine.ops.spec import OperatorSpec, check_rank, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

_SOFTMAX_TYPES: Final = {each.onnx: each for each in (f32, f16, f64, bf16)}
_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(3, 7)
_ENDLESS: Final = 1 << 30
"""A window that reaches beyond any keys."""
_CACHE: Final = ("past_key", "past_value", "nonpad_kv_seqlen")


@dataclass(frozen=True, slots=True)
class Heads:
    """The memory layout of Q, K, V or Y: [batch, heads, rows, size] with contiguous rows.

    Attributes:
        strides: elements from one batch, head and row to the next.
        start: the offset of the first head, in elements.
    """

    batch: int
    heads: int
    rows: int
    size: int
    strides: tuple[int, int, int]
    start: int = 0

    @classmethod
    def of(cls, shape: Sequence[int], heads: int) -> Heads:
        """The layout of a tensor [B, H, S, D] or [B, S, H * D]."""
        if len(shape) == 4:
            batch, heads, rows, size = shape
            return cls(batch, heads, rows, size, (heads * rows * size, rows * size, size))
        batch, rows, width = shape
        size = width // heads
        return cls(batch, heads, rows, size, (rows * width, size, width))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of a tensor with these heads: [batch, heads, rows, size]."""
        return self.batch, self.heads, self.rows, self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLengths:
    """The facts of an attention that follow from its inputs' shapes.

    Attributes:
        q: the queries.
        k: the keys, without past ones.
        v: the values, without past ones.
        y: the result.
        past: how many keys precede `k`.
        scale: the factor of the scores.
    """

    q: Heads
    k: Heads
    v: Heads
    y: Heads
    past: int
    scale: float

    @property
    def keys(self) -> int:
        """The number of keys, including past ones."""
        return self.past + self.k.rows


declare("Attention", accumulates=True)


@specifies("Attention")
@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(OperatorSpec):
    """The attributes of Attention.

    Attributes:
        scale: the factor of the scores; None is 1 / sqrt(head size).
        softcap: the scores become softcap * tanh(scores / softcap); 0 disables it.
        softmax_precision: the type in which the softmax is computed; None means Q's type.
        qk_matmul_output_mode: the content of the fourth output: 0 the scores, 1 after softcap, 2 with the mask added,
            3 after the softmax.
    """

    is_causal: bool
    kv_num_heads: int | None
    left_window_size: int
    q_num_heads: int | None
    qk_matmul_output_mode: int
    right_window_size: int
    scale: float | None
    softcap: float
    softmax_precision: ElementType | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        ranks = {check_rank(node, index, 3, 4) for index in range(3)} - {None}
        if len(ranks) > 1:
            raise OperatorSpecError(f"{node}: some of Q, K and V have rank 3, others 4; allowed: equal ranks")
        for name in ("q_num_heads", "kv_num_heads"):
            heads = given[name]
            if (heads is None and 3 in ranks) or (heads is not None and heads < (1 if 3 in ranks else 0)):
                refuse(node, name, heads, "1 or more, as Q, K and V have rank 3" if 3 in ranks else "1 or more")
        for index in (_PAST_KEY, _PAST_VALUE):
            check_rank(node, index, 4)
        _check_cache(node)
        check_scale(node, given["scale"])
        softcap = given["softcap"]
        if not math.isfinite(softcap):
            refuse(node, "softcap", softcap, "a finite number")
        given["softcap"] = max(softcap, 0.0)
        given["softmax_precision"] = softmax_type(node, given["softmax_precision"])
        if given["qk_matmul_output_mode"] not in range(4):
            refuse(node, "qk_matmul_output_mode", given["qk_matmul_output_mode"], "0..3")
        for name in ("left_window_size", "right_window_size"):
            if given[name] < -1:
                refuse(node, name, given[name], "a number of keys, or -1 for all of them")

    @property
    def mask(self) -> Output | None:
        """The mask: added to the scores, or of bool, where False masks a key."""
        return self.input(_MASK)

    @property
    def is_mask_cut(self) -> bool:
        """Whether keys beyond the mask's length are masked; otherwise, the mask is broadcast."""
        return True

    @property
    def past_key(self) -> Output | None:
        """Keys of earlier positions, [batch, kv_heads, positions, size], which precede K; None if omitted."""
        return self.input(_PAST_KEY)

    @property
    def past_value(self) -> Output | None:
        """Values of earlier positions, [batch, kv_heads, positions, size], which precede V; None if omitted."""
        return self.input(_PAST_VALUE)

    @property
    def nonpad_kv_seqlen(self) -> Output | None:
        """The number of valid keys of each batch; the queries are at the last of these positions."""
        return self.input(_LENGTHS)

    @property
    def window(self) -> tuple[int, int]:
        """The number of keys before and after its own position that a query sees; -1 is unlimited."""
        return min(self.left_window_size, _ENDLESS), 0 if self.is_causal else min(self.right_window_size, _ENDLESS)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AttentionLengths:
        """The facts that follow from the inputs' shapes. Raises `OperatorSpecError` if the shapes do not fit."""
        past = [tuple(shape) for shape in shapes[_PAST_KEY:_LENGTHS] if shape is not None]
        found = attention_lengths(
            self.node, shapes, self.q_num_heads or 0, self.kv_num_heads or 0, self.scale, past[0][2] if past else 0
        )
        expected = [(x.batch, x.heads, found.past, x.size) for x in (found.k, found.v)]
        if past and past != expected:
            raise OperatorSpecError(f"{self.node}: past_key and past_value have shapes {past}; allowed: {expected}")
        return found


def attention_lengths(
    node: Node,
    shapes: Sequence[Sequence[int] | None],
    heads: int,
    kv_heads: int,
    scale: float | None,
    past: int = 0,
) -> AttentionLengths:
    """`AttentionLengths` of separate inputs Q, K and V; `heads` and `kv_heads` are for inputs of rank 3.

    Raises `OperatorSpecError` if heads or lengths do not fit.
    """
    given = [(), (), ()] if None in shapes[:3] else [tuple(shape or ()) for shape in shapes[:3]]
    ranks = {len(shape) for shape in given}
    if ranks not in ({3}, {4}):
        raise OperatorSpecError(f"{node}: Q, K and V have shapes {given}; allowed: all of rank 4, or all of rank 3")
    if ranks == {3}:
        for shape, count, what in zip(given, (heads, kv_heads, kv_heads), "QKV", strict=True):
            if not count or shape[2] % count:
                raise OperatorSpecError(f"{node}: {count} heads do not divide the width {shape[2]} of {what}")
    q, k, v = (Heads.of(shape, count) for shape, count in zip(given, (heads, kv_heads, kv_heads), strict=True))
    if q.heads and (not k.heads or q.heads % k.heads):
        raise OperatorSpecError(f"{node}: {k.heads} heads of K do not divide {q.heads} heads of Q")
    if q.size != k.size or k.rows != v.rows or k.heads != v.heads or not q.batch == k.batch == v.batch:
        raise OperatorSpecError(
            f"{node}: Q {q.shape}, K {k.shape} and V {v.shape}, [batch, heads, length, size], do not fit; the batch, "
            "the heads of K and V, the size of Q and K, and the length of K and V must be equal"
        )
    result = (q.batch, q.heads, q.rows, v.size) if ranks == {4} else (q.batch, q.rows, q.heads * v.size)
    return AttentionLengths(
        q=q, k=k, v=v, y=Heads.of(result, q.heads), past=past, scale=default_scale(q.size) if scale is None else scale
    )


def check_scale(node: Node, scale: float | None) -> None:
    """Raise `OperatorSpecError` if the attribute scale is given but not a finite number of 0 or more."""
    if scale is not None and not 0 <= scale < math.inf:
        refuse(node, "scale", scale, "a finite number of 0 or more")


def softmax_type(node: Node, code: int | None) -> ElementType | None:
    """The element type of the attribute softmax_precision; None if it is not given.

    Raises `OperatorSpecError` unless it is a floating-point type.
    """
    if code and code not in _SOFTMAX_TYPES:
        allowed = ", ".join(f"{known} ({each.name})" for known, each in _SOFTMAX_TYPES.items())
        refuse(node, "softmax_precision", code, allowed)
    return _SOFTMAX_TYPES[code] if code else None


def default_scale(size: int) -> float:
    """The default factor of the scores, for heads of `size`."""
    return 1 / math.sqrt(size) if size else 1.0


def _check_cache(node: Node) -> None:
    past = [node.has_input(index) for index in (_PAST_KEY, _PAST_VALUE)]
    if past[0] != past[1] or (past[0] and node.has_input(_LENGTHS)):
        given = [name for index, name in enumerate(_CACHE, _PAST_KEY) if node.has_input(index)]
        raise OperatorSpecError(
            f"{node}: the given optional inputs are {' and '.join(given)}; allowed: past_key and past_value "
            "together, or nonpad_kv_seqlen"
        )


@infers("Attention")
def _infer_attention(node: Node) -> Sequence[ValueType]:
    """ONNX treats unknown lengths as 0 in the fourth output, and unknown ranks as scalars."""
    check_inputs(node, get_op("Attention"))
    spec = AttentionSpec.of(node)
    query, key, value = (tensor_type(node, index) for index in range(3))
    rank = next((len(t.shape) for t in (query, key, value) if t.shape.rank.is_static), None)
    q = _per_head(node, query.shape, rank, spec.q_num_heads, "Q")
    k, v = (_per_head(node, t.shape, rank, spec.kv_num_heads, "K and V") for t in (key, value))
    k, v = _with_past(spec.past_key, k), _with_past(spec.past_value, v)
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


def _per_head(node: Node, shape: PartialShape, rank: int | None, count: int | None, what: str) -> list[Dimension]:
    """[batch, heads, length, size] for both layouts of the input."""
    if rank == 4 and shape.rank.is_static:
        return list(shape.dims)
    heads = count if rank == 3 else None
    if heads is None or shape.rank.is_dynamic:
        return [as_dimension(None), as_dimension(heads), as_dimension(None), as_dimension(None)]
    width = shape[2]
    if width.is_static and width.min % heads:
        fail(node, f"{heads} heads do not divide the width {width} of {what}")
    return [shape[0], as_dimension(heads), shape[1], as_dimension(width.min // heads if width.is_static else None)]


def _with_past(past: Output | None, dims: list[Dimension]) -> list[Dimension]:
    """`dims` with the length of `past` added."""
    if past is None:
        return dims
    if past.shape.rank.is_dynamic:
        return [dims[0], dims[1], as_dimension(None), dims[3]]
    return [dims[0], dims[1], sum_dims([past.shape[2], dims[2]]), dims[3]]


@evaluates_with_spec("Attention")
def attention(
    spec: AttentionSpec,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Scaled dot-product attention (ONNX Attention-25); the result is zero for a query that sees no key.

    Of f16 and bf16 in f32, unless `softmax_precision` says otherwise: scores may not fit f16.
    """
    inputs = (query, key, value, mask, past_key, past_value)
    lengths = spec.at([None if x is None else x.shape for x in inputs])
    q, k, v = (_per_head_array(x, h) for x, h in ((query, lengths.q), (key, lengths.k), (value, lengths.v)))
    if past_key is not None and past_value is not None:
        k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    present_key, present_value = k, v
    q, k, v = widened(q), widened(k), widened(v)
    if k.shape[1]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    root = q.dtype.type(np.sqrt(lengths.scale))
    stages = [np.matmul(q * root, np.swapaxes(k * root, -1, -2))]
    softcap = q.dtype.type(spec.softcap)
    stages.append(np.tanh(stages[0] / softcap) * softcap if spec.softcap else stages[0])
    # The number of keys before the first query: past keys, or the keys of an external cache.
    offset: Any = lengths.past
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - q.shape[2]
    allowed = _visible(q.shape[2], k.shape[2], offset, spec.window)
    if nonpad_kv_seqlen is not None:
        allowed = allowed & (np.arange(k.shape[2]) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1))
    bias = np.where(allowed, q.dtype.type(0), q.dtype.type(-np.inf))
    if mask is not None:
        bias = bias + _as_bias(mask, k.shape[2], q.dtype)
    stages.append(stages[1] + bias)
    wide = stages[2].astype(spec.softmax_precision.numpy) if spec.softmax_precision else stages[2]
    # The bias alone decides what is masked, because a score of infinity minus infinity would be NaN.
    is_blind = np.isneginf(bias.max(axis=-1, keepdims=True, initial=-np.inf))
    stages.append(np.where(is_blind, wide.dtype.type(0), softmax(np.where(is_blind, wide.dtype.type(0), wide))))
    y = np.matmul(stages[3].astype(q.dtype), v)
    if query.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    shown = np.broadcast_to(stages[spec.qk_matmul_output_mode], stages[3].shape).astype(query.dtype)
    return y.astype(query.dtype, copy=False), present_key, present_value, shown


def _per_head_array(x: Array, heads: Heads) -> Array:
    """[batch, length, heads * size] as [batch, heads, length, size]; rank 4 is returned unchanged."""
    return x if x.ndim == 4 else x.reshape(heads.batch, heads.rows, heads.heads, -1).transpose(0, 2, 1, 3)


def _visible(queries: int, keys: int, offset: Any, window: tuple[int, int]) -> Array:
    """The keys that each query sees: those within `window` before and after its own position; -1 is unlimited."""
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    before, after = window
    allowed = np.ones(ahead.shape, dtype=np.bool_)
    if before >= 0:
        allowed &= ahead >= -before
    if after >= 0:
        allowed &= ahead <= after
    return allowed


def _as_bias(mask: Array, keys: int, dtype: np.dtype[Any]) -> Array:
    """A mask as a summand of the scores; keys beyond its length are masked."""
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


# -- cost -------------------------------------------------------------------------------------------------


@operations("Attention")
def _products(node: Node) -> float:
    """Q K^T and P V, including past keys: B * H * S * T products of size D, and as many of size E."""
    rows, keys, sizes = _extents(node)
    return 2.0 * rows * keys * sizes if rows else float(size_of(node.output(0)))


@more_time("Attention")
def _time(node: Node) -> float:
    """A score for each query and key, computed in several passes, and two products."""
    rows, keys, sizes = _extents(node)
    return rows * keys * (128 + sizes)


def _extents(node: Node) -> tuple[int, int, int]:
    """The numbers of rows of queries of all heads, of keys, and of elements of a query and a value."""
    query, key, value = (lengths_of(node.input_value(index)) for index in range(3))
    past = lengths_of(node.input_value(4)) if node.has_input(4) else ()
    keys = (key[-2] if len(key) > 1 else 1) + (past[-2] if len(past) == 4 else 0)
    if len(query) == 4:
        return query[0] * query[1] * query[2], keys, query[3] + sum(value[-1:])
    if len(query) != 3:
        return 0, keys, 0
    # Of three dimensions, the last one has all heads.
    heads = node.attributes.get("q_num_heads") or 1
    kv_heads = node.attributes.get("kv_num_heads") or 1
    return query[0] * query[1] * heads, keys, query[2] // heads + sum(value[-1:]) // kv_heads


@maps_axes("Attention")
def _axes(node: Node) -> Axes:
    """Heads may share keys, and masks tell positions apart; so only the batch is independent."""
    rank = rank_of_value(node.input_value(3)) if node.has_input(3) else 0
    if rank is None:
        return None
    mask = "B *" if rank == 4 else "*"
    return f"B *, B *, B *, {mask}, B *, B *, B -> B *, B *, B *, B *"
