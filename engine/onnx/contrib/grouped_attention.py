"""`GroupQueryAttention`: causal attention over a cache whose sequences have lengths of their own."""

from __future__ import annotations

import math
from typing import Any, Final

from engine import ops
from engine.ir import Output, i32, i64
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.contrib.masks import length_of
from engine.onnx.contrib.rotary import rotated_by
from engine.onnx.contrib.windowed_cache import WindowedCache
from engine.onnx.upgrades.emit import cast, emit, i64_scalar, i64s, scalar_like
from engine.startup import dataclass

_EPSILON: Final = 1e-6


@contrib(
    "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?",
    "causal do_rotary k_norm_epsilon k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads "
    "q_norm_epsilon qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap "
    "v_quant_type",
    outputs="output present_key present_value output_qk",
)
def _group_query_attention(call: ContribCall) -> list[Output | None]:
    """The new keys and values are written into the past ones, behind those that each sequence has.

    Without a past, the keys are the queries' own, and the operator of ONNX does all of it. With one, the positions of
    the queries follow from the lengths of the sequences, so that a mask says which keys they see.
    """
    call.without_attributes(k_quant_type="NONE", kv_cache_bit_width=0, qk_output=0, v_quant_type="NONE")
    call.without_inputs("k_scale", "v_scale")
    heads = _Heads.of(call)
    q, k, v = _operands(call, heads)
    if call.has_input(14) or call.has_input(15):
        q, k = _normalized(call, q, 14, heads.queries, heads.size), _normalized(call, k, 15, heads.keys, heads.size)
    past = _past(call)
    last = cast(emit("Reshape", call.typed(5, {i32}), i64s([-1])), i64)  # the last position of each sequence
    before = _before(call, last, length_of(q, 1), past)
    rows = emit("Range", i64_scalar(0), length_of(q, 1), i64_scalar(1))
    positions = emit("Add", emit("Unsqueeze", before, i64s([1])), rows)  # [B, S]
    total = emit("Reshape", cast(call.typed(6, {i32}), i64), i64s([]))
    if call.choice("do_rotary", 0, (0, 1)):
        q, k = _rotated(call, q, k, heads, _given_positions(call, rows, total) if call.has_input(9) else positions)
    is_causal = bool(call.choice("causal", 1, (0, 1)))
    if not is_causal and _window(call) is not None:
        call.invalid("attribute `local_window_size` is given; expected none, as `causal` is 0")
    is_windowed = bool(call.choice("sliding_window_cache", 0, (0, 1)))
    if is_windowed and not past:
        call.invalid("past_key and past_value are omitted; expected both, as `sliding_window_cache` is 1")
    if not past and is_causal and not _has_sink(call) and not call.has_input(10):
        return _of_prompt(call, q, k, v, heads)
    q, k, v = (_by_head(x, n, heads.size) for x, n in ((q, heads.queries), (k, heads.keys), (v, heads.keys)))
    if is_windowed:
        cache = WindowedCache.of(call, _window(call), past[0], before, last)
        k, v = (emit("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
        present = [cache.kept(values, heads.keys, heads.size) for values in (k, v)]
        return [_attended(call, heads, q, k, v, cache.visible(rows)), *present, None]
    count = length_of(q, 2)
    if past:
        missing = emit("Max", emit("Sub", total, length_of(past[0], 2)), i64_scalar(0))
        k, v = (_appended(old, new, before, missing) for old, new in zip(past, (k, v), strict=True))
        count = emit("Add", length_of(past[0], 2), missing)
    visible = _visible(call, count, positions if is_causal else emit("Unsqueeze", last, i64s([1])))
    return [_attended(call, heads, q, k, v, visible), k, v, None]


@dataclass(frozen=True, slots=True)
class _Heads:
    """The numbers of heads, and the size of each."""

    queries: int
    keys: int
    size: int

    @classmethod
    def of(cls, call: ContribCall) -> _Heads:
        queries, keys = call.heads(), call.heads("kv_num_heads")
        if queries % keys:
            call.invalid(f"attribute `num_heads` is {queries}; expected a multiple of `kv_num_heads`, {keys}")
        call.ranked(0, 3)
        width = call.length(0, 2)
        parts = queries if call.has_input(1) else queries + 2 * keys
        if width % parts:
            call.invalid(f"{call.described(0)} has shape {call.input(0).shape}; expected a width of {parts} heads")
        return cls(queries, keys, width // parts)


def _operands(call: ContribCall, heads: _Heads) -> list[Output]:
    """New queries, keys and values, [B, S, H * D], which may be side by side in one input."""
    q = call.typed(0, REALS)
    if call.has_input(1) != call.has_input(2):
        call.invalid("key and value must both be given, or both be omitted")
    if call.has_input(1):
        for index in (1, 2):
            call.ranked(index, 3)
            found, expected = call.real(index).shape, heads.keys * heads.size
            if found.rank.is_static and not found[2].accepts(expected):
                call.invalid(f"{call.described(index)} has shape {found}; expected width {expected}")
        return [q, call.input(1), call.input(2)]
    sizes = i64s([heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.size])
    return list(ops.create("Split", [q, sizes], {"axis": -1}, num_outputs=3).outputs)


def _past(call: ContribCall) -> list[Output]:
    """The caches of keys and values, [B, HK, P, D]; empty if there are none."""
    if call.has_input(3) != call.has_input(4):
        call.invalid("past_key and past_value must both be given, or both be omitted")
    if not call.has_input(3):
        return []
    for index in (3, 4):
        call.ranked(index, 4)
    return [call.real(3), call.real(4)]


def _normalized(call: ContribCall, x: Output, index: int, heads: int, size: int) -> Output:
    """Each head of `x`, [B, S, H * D], normalized, with the weights of input `index`."""
    if not call.has_input(14) or not call.has_input(15):
        call.invalid("q_norm_weight and k_norm_weight must both be given, or both be omitted")
    weight = call.real(index)
    call.ranked(index, 1)
    if weight.shape.rank.is_static and not weight.shape[0].accepts(size):
        call.invalid(f"{call.described(index)} has shape {weight.shape}; expected [{size}], the size of a head")
    both = call.number("qk_norm_epsilon", _EPSILON)
    epsilon = call.number("q_norm_epsilon" if index == 14 else "k_norm_epsilon", both)
    if not 0 < epsilon < math.inf:
        call.invalid(f"the epsilon of {call.described(index)} is {epsilon}; expected a positive number")
    by_head = emit("Reshape", x, i64s([0, 0, heads, size]))
    y = emit("RMSNormalization", by_head, weight, axis=-1, epsilon=epsilon)
    return emit("Reshape", y, i64s([0, 0, heads * size]))


def _before(call: ContribCall, last: Output, rows: Output, past: list[Output]) -> Output:
    """The number of tokens that each sequence has before the call, [B].

    With `query_seqlens`, rows behind those of a sequence are a padding. More rows than there are, or more tokens before
    the call than the past has, are a read out of range, which is an error.
    """
    total = emit("Add", last, i64_scalar(1))
    if not call.has_input(16):
        return emit("Max", emit("Sub", total, rows), i64_scalar(0))
    call.ranked(16, 1)
    if not past or call.choice("causal", 1, (0, 1)) != 1:
        call.invalid(f"{call.described(16)} is given; expected past_key and past_value, and 1 as attribute `causal`")
    own = cast(call.typed(16, {i32}), i64)
    before = emit("Sub", total, own)
    is_valid = emit("And", emit("GreaterOrEqual", own, i64_scalar(0)), emit("LessOrEqual", own, rows))
    is_valid = emit("And", is_valid, emit("GreaterOrEqual", before, i64_scalar(0)))
    if not call.integer("sliding_window_cache", 0):
        is_valid = emit("And", is_valid, emit("LessOrEqual", before, length_of(past[0], 2)))
    samples = emit("Range", i64_scalar(0), length_of(last, 0), i64_scalar(1))
    return emit("Gather", before, emit("Where", is_valid, samples, length_of(last, 0)), axis=0)


def _given_positions(call: ContribCall, rows: Output, total: Output) -> Output:
    """The positions of the embeddings, [B, S]: those given; in the first prompt, they count from the first one.

    With `query_seqlens`, a first prompt is not different.
    """
    given = call.typed(9, {i64})
    call.ranked(9, 2)
    if call.has_input(16):
        return given
    first = emit("Slice", given, i64s([0, 0]), i64s([1, 1]), i64s([0, 1]))
    is_prompt = emit("Equal", emit("Squeeze", emit("Shape", rows), i64s([0])), total)
    return emit("Where", is_prompt, emit("Add", first, rows), given)


def _rotated(call: ContribCall, q: Output, k: Output, heads: _Heads, positions: Output) -> tuple[Output, Output]:
    if not call.has_input(7) or not call.has_input(8):
        call.invalid("attribute `do_rotary` is 1; expected inputs cos_cache and sin_cache")
    columns = call.length(7, 1)
    is_interleaved = bool(call.choice("rotary_interleaved", 0, (0, 1)))
    rotated = 0 if 2 * columns == heads.size else 2 * columns
    turned = [
        rotated_by(
            call, x, positions, 7, {"num_heads": n, "rotary_embedding_dim": rotated}, is_interleaved=is_interleaved
        )
        for x, n in ((q, heads.queries), (k, heads.keys))
    ]
    return turned[0], turned[1]


def _of_prompt(call: ContribCall, q: Output, k: Output, v: Output, heads: _Heads) -> list[Output | None]:
    """Attention without a past: each query sees the keys up to its own, those in a padding see no others' results."""
    window = _window(call)
    attributes: dict[str, Any] = {
        "is_causal": 1,
        "left_window_size": -1 if window is None else window - 1,
        "q_num_heads": heads.queries,
        "kv_num_heads": heads.keys,
        "softcap": call.number("softcap", 0.0),
        **_scale(call),
    }
    outputs = 3 if call.num_outputs > 1 else 1
    return [*ops.create("Attention", [q, k, v], attributes, num_outputs=outputs).outputs, None]


def _appended(past: Output, new: Output, before: Output, missing: Output) -> Output:
    """The cache, lengthened by zeros for `missing` positions, with `new` behind the first `before`."""
    lengths = [emit("Shape", new, start=axis, end=axis + 1) for axis in range(4)]
    lengths[2] = emit("Unsqueeze", missing, i64s([0]))
    zeros = emit("Expand", scalar_like(0.0, past), emit("Concat", *lengths, axis=0))
    return emit("TensorScatter", emit("Concat", past, zeros, axis=2), new, before, axis=2)


def _attended(call: ContribCall, heads: _Heads, q: Output, k: Output, v: Output, visible: Output) -> Output:
    """The result, [B, S, H * D], for queries, keys and values by head, and which keys each query sees."""
    bias = call.real(10) if call.has_input(10) else None
    mask = visible
    if bias is not None or _has_sink(call):
        zero, forbidden = scalar_like(0.0, q), scalar_like(-math.inf, q)
        mask = emit("Where", visible, zero if bias is None else bias, forbidden)
    if _has_sink(call):
        mask, k, v = _with_sink(call, mask, q), _with_zeros(k), _with_zeros(v)
    attributes: dict[str, Any] = {"softcap": call.number("softcap", 0.0)} | _scale(call)
    y = emit("Attention", q, k, v, mask, **attributes)
    return emit("Reshape", emit("Transpose", y, perm=(0, 2, 1, 3)), i64s([0, 0, heads.queries * heads.size]))


def _visible(call: ContribCall, count: Output, positions: Output) -> Output:
    """Which of `count` keys each query sees; `positions`, [B, S] or [B, 1], are the last ones that they see."""
    if call.has_input(10):
        call.ranked(10, 4)
        count = length_of(call.real(10), 3)
    keys = emit("Range", i64_scalar(0), count, i64_scalar(1))
    own = emit("Unsqueeze", positions, i64s([1, 3]))  # [B, 1, S, 1]
    visible = emit("LessOrEqual", keys, own)
    window = _window(call)
    if window is None:
        return visible
    return emit("And", visible, emit("Greater", keys, emit("Sub", own, i64_scalar(window))))


def _with_sink(call: ContribCall, mask: Output, q: Output) -> Output:
    """The mask with one more key, whose score of 0 becomes the score of each head's sink."""
    sink = scalar_like(0.0, q)
    if call.has_input(11):
        call.ranked(11, 1)
        sink = emit("Reshape", call.real(11), i64s([1, -1, 1, 1]))
    scores = emit("Shape", q, start=0, end=3)
    parts = (
        emit("Expand", value, emit("Concat", scores, length, axis=0))
        for value, length in ((mask, emit("Shape", mask, start=3)), (sink, i64s([1])))
    )
    return emit("Concat", *parts, axis=3)


def _with_zeros(values: Output) -> Output:
    """Keys or values and one more, of zeros."""
    ends = emit("Concat", emit("Shape", values, start=0, end=2), i64s([1]), emit("Shape", values, start=3), axis=0)
    return emit("Concat", values, emit("Expand", scalar_like(0.0, values), ends), axis=2)


def _has_sink(call: ContribCall) -> bool:
    """Whether a number per head is added to the sum of the exponentials of its scores."""
    return call.has_input(11) or call.choice("smooth_softmax", -1, (-1, 0, 1)) == 1


def _window(call: ContribCall) -> int | None:
    """The number of keys up to its own that a query sees; None for all of them."""
    window = call.integer("local_window_size", -1)
    if window != -1 and window < 1:
        call.invalid(f"attribute `local_window_size` is {window}; expected 1 or more, or -1 for all keys")
    return None if window == -1 else window


def _scale(call: ContribCall) -> dict[str, float]:
    scale = call.number("scale", 0.0)
    return {"scale": scale} if scale else {}


def _by_head(x: Output, heads: int, size: int) -> Output:
    """[B, S, H * D] as [B, H, S, D]."""
    return emit("Transpose", emit("Reshape", x, i64s([0, 0, heads, size])), perm=(0, 2, 1, 3))
