"""Attentions with one head of keys for each of the queries: MultiHeadAttention, Attention and QAttention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine import ops
from engine.ir import Output
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.contrib.integer_products import product_of_codes, quantized_input
from engine.onnx.contrib.masks import Keys, added_mask, is_same, length_of, merged
from engine.onnx.upgrades.emit import emit, i64_scalar, i64s, rank_of, scalar_like


@contrib(
    "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?",
    "mask_filter_value num_heads scale unidirectional",
    outputs="output present_key present_value qk",
)
def _multi_head(call: ContribCall) -> list[Output | None]:
    call.typed(0, REALS)
    call.without_inputs("past_sequence_length", "cache_indirection")
    heads = call.heads()
    if not call.has_input(1) or not call.has_input(2):
        call.unsupported(
            "inputs 1 (key) and 2 (value) are not both given: keys or values are packed with another input",
            "write the model with separate inputs",
        )
    if rank_of(call.ranked(0, 3)) is None or rank_of(call.ranked(1, 3, 4)) is None:
        call.unsupported("the ranks of the queries or keys are unknown", "state their shapes in the model's value_info")
    if rank_of(call.ranked(2, 3, 4)) != rank_of(call.input(1)):
        call.invalid(f"{call.described(2)} has shape {call.input(2).shape}; expected the rank of the keys")
    is_crossed = rank_of(call.input(1)) == 4
    if call.has_input(6) != call.has_input(7):
        call.invalid("past_key and past_value must both be given, or both be omitted")
    if is_crossed and call.has_input(6):
        call.invalid("past_key is given; expected none, as the keys have rank 4")
    q, k, v = _with_bias(call, is_crossed)
    past = [call.real(index) for index in (6, 7) if call.has_input(index)]
    keys = Keys.of((k, 2 if is_crossed else 1), *((each, 2) for each in past[:1]))
    mask = _added(call, 4, 5, keys, q)
    is_causal = bool(call.choice("unidirectional", 0, (0, 1)))
    if is_causal and (is_crossed or not _have_same_length(q, k)):
        before = length_of(past[0], 2) if past else i64_scalar(0)
        mask, is_causal = merged(mask, _causal_mask(q, keys, before)), False
    if not is_crossed:
        return [*_attention(call, [q, k, v], mask, past, heads, is_causal=is_causal), None]
    q = emit("Transpose", emit("Reshape", q, i64s([0, 0, heads, -1])), perm=(0, 2, 1, 3))
    y, *present = _attention(call, [q, k, v], mask, past, heads, is_causal=is_causal)
    return [emit("Reshape", emit("Transpose", y, perm=(0, 2, 1, 3)), i64s([0, 0, -1])), *present, None]


def _have_same_length(q: Output, k: Output) -> bool:
    """Whether queries and keys are known to be equally many, since their lengths are, or both are of the same value."""
    return is_same(q.shape[1], k.shape[1]) or _projected(q) == _projected(k)


def _projected(value: Output) -> Output:
    """What a value [B, S, width] is a projection of: matrices and biases leave S as it is."""
    while True:
        node = value.node
        if node.op_type not in ("MatMul", "Add") or node.domain:
            return value
        first, second = node.input_values
        if first is None or second is None:
            return value
        ranks = rank_of(first), rank_of(second)
        if node.op_type == "MatMul" and ranks == (3, 2):
            value = first
        elif node.op_type == "Add" and 3 in ranks and 1 in ranks:
            value = first if ranks[0] == 3 else second
        else:
            return value


def _with_bias(call: ContribCall, is_crossed: bool) -> list[Output]:
    """Queries, keys and values, each with its part of the bias; keys and values that are a cache have none."""
    values = [call.input(0), call.real(1), call.real(2)]
    if not call.has_input(3):
        return values
    bias = call.real(3)
    call.ranked(3, 1)
    if is_crossed:
        own = emit("Slice", bias, i64s([0]), i64s([call.length(0, 2)]))
        return [emit("Add", values[0], own), *values[1:]]
    widths = [call.length(index, 2) for index in range(3)]
    if not bias.shape.accepts((sum(widths),)):
        call.invalid(f"{call.described(3)} has shape {bias.shape}; expected [{sum(widths)}], for Q, K and V")
    parts = ops.create("Split", [bias, i64s(widths)], {"axis": 0}, num_outputs=3).outputs
    return [emit("Add", value, part) for value, part in zip(values, parts, strict=True)]


@contrib(
    "Attention",
    "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes rotary_embedding_dim scale "
    "unidirectional",
    outputs="output present",
)
def _attention_of_input(call: ContribCall) -> list[Output | None]:
    """Self-attention whose queries, keys and values are one product."""
    call.without_attributes(do_rotary=0, past_present_share_buffer=0)
    call.without_inputs("past_sequence_length")
    call.typed(0, REALS)
    call.ranked(0, 3)
    call.real(1)
    call.ranked(1, 2)
    projected = emit("MatMul", call.input(0), call.input(1))
    if call.has_input(2):
        call.ranked(2, 1)
        projected = emit("Add", projected, call.real(2))
    return _self_attention(call, projected, mask=3, past=4, bias=5)


@contrib(
    "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
    "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional",
    outputs="output present",
)
def _attention_of_codes(call: ContribCall) -> list[Output | None] | None:
    """Self-attention whose queries, keys and values are one product of integers; None if it rotates its input.

    Also None if it writes its keys and values into the buffer of the past ones.
    """
    if call.integer("do_rotary", 0) or call.integer("past_present_share_buffer", 0):
        return None
    operand = quantized_input(call, 0, 3, 6)
    projected = product_of_codes(call, operand, b=1, b_scale=4, b_zero_point=7, bias=2)
    return _self_attention(call, projected, mask=5, past=8)


def _self_attention(
    call: ContribCall, projected: Output, *, mask: int, past: int, bias: int | None = None
) -> list[Output | None]:
    """Attention of queries, keys and values side by side; the numbers are indices of inputs.

    The past keys and values are one input, [2, B, H, P, D], and the present ones one output.
    """
    heads = call.heads()
    given = call.optional(past)
    if given is not None and rank_of(call.typed(past, REALS)) not in (None, 5):
        call.invalid(
            f"{call.described(past)} has shape {given.shape}; expected [2, batch, heads, length, size of a head]"
        )
    parts = _split(call, projected, heads)
    keys = Keys.of((projected, 1), *(() if given is None else ((given, 3),)))
    old = [] if given is None else [emit("Gather", given, i64_scalar(index), axis=0) for index in (0, 1)]
    added = _added(call, mask, bias, keys, projected, has_pairs=True)
    is_causal = bool(call.choice("unidirectional", 0, (0, 1)))
    y, *present = _attention(call, parts, added, old, heads, is_causal=is_causal)
    if call.num_outputs == 1:
        return [y]
    return [y, emit("Concat", *(emit("Unsqueeze", each, i64s([0])) for each in present), axis=0)]


def _split(call: ContribCall, projected: Output, heads: int) -> Sequence[Output]:
    """Queries, keys and values; only values may have another width."""
    sizes = call.integers("qkv_hidden_sizes")
    if not sizes:
        return ops.create("Split", [projected], {"axis": -1, "num_outputs": 3}, num_outputs=3).outputs
    if len(sizes) != 3 or any(size < 1 or size % heads for size in sizes) or sizes[0] != sizes[1]:
        call.invalid(
            f"attribute `qkv_hidden_sizes` is {list(sizes)}; expected 3 multiples of num_heads, {heads}, the first two "
            "equal"
        )
    return ops.create("Split", [projected, i64s(sizes)], {"axis": -1}, num_outputs=3).outputs


def _added(
    call: ContribCall, mask: int, bias: int | None, keys: Keys, like: Output, *, has_pairs: bool = False
) -> Output | None:
    """The numbers that the mask and the bias of the scores, inputs of these indices, add to the scores."""
    first = added_mask(call, mask, keys=keys, like=like, has_pairs=has_pairs) if call.has_input(mask) else None
    if bias is None or not call.has_input(bias):
        return first
    call.ranked(bias, 4)
    return merged(first, call.real(bias))


def _causal_mask(q: Output, keys: Keys, past: Output) -> Output:
    """The mask of keys after the position of a query, [S, T], if there are more or fewer keys than queries.

    In onnxruntime, the last query then sees all keys, which is what a single query of a step needs; the positions of
    the others are counted from the first key that is not past, as in ONNX's operator.
    """
    length = length_of(q, 1)
    rows = emit("Range", i64_scalar(0), length, i64_scalar(1))
    is_last = emit("Equal", rows, emit("Sub", length, i64_scalar(1)))
    last = emit("Where", is_last, keys.value, emit("Add", rows, past))
    positions = emit("Range", i64_scalar(0), keys.value, i64_scalar(1))
    visible = emit("LessOrEqual", positions, emit("Unsqueeze", last, i64s([1])))
    return emit("Where", visible, scalar_like(0.0, q), scalar_like(-math.inf, q))


def _attention(
    call: ContribCall,
    values: Sequence[Output],
    mask: Output | None,
    past: Sequence[Output],
    heads: int,
    *,
    is_causal: bool,
) -> list[Output]:
    """The result, and the keys and values of all positions, [B, H, T, D], if the call has more than one output."""
    attributes: dict[str, Any] = {"is_causal": int(is_causal)}
    if rank_of(values[0]) == 3:
        attributes |= {"q_num_heads": heads, "kv_num_heads": heads}
    if call.number("scale", 0.0):
        attributes["scale"] = call.number("scale")
    if call.num_outputs == 1 and not past:
        return [emit("Attention", *values, mask, **attributes)]
    return list(ops.create("Attention", [*values, mask, *past], attributes, num_outputs=3).outputs)
