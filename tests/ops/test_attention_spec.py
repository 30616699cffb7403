"""Specs of Attention, FusedAttention, FlexAttention and RotaryEmbedding.

If a case fails here, devices and the reference read a node differently, or a model that contradicts itself is computed.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Node, Output, Parameter, boolean, f16, f32, i64
from engine.ops.attention import AttentionSpec, Heads
from engine.ops.flex_attention import FlexAttentionSpec
from engine.ops.internal import FusedAttention, FusedAttentionSpec
from engine.ops.rotary import RotarySpec

Shape = list[int | None] | None


def p(shape: Shape, element_type: Any = f32) -> Output | None:
    return None if shape is None else Parameter(element_type, shape).output(0)


def attention(*shapes: Shape, **attributes: Any) -> Node:
    types = [f32, f32, f32, boolean, f32, f32, i64]
    return ops.Attention(*map(p, shapes, types[: len(shapes)]), **attributes)


Q, K, V = [2, 4, 3, 8], [2, 2, 5, 8], [2, 2, 5, 6]
PAST = [2, 2, 7, 8], [2, 2, 7, 6]


def test_defaults() -> None:
    spec = AttentionSpec.of(attention(Q, K, V))
    assert (spec.scale, spec.softcap, spec.softmax_precision, spec.qk_matmul_output_mode) == (None, 0.0, None, 0)
    assert spec.window == (-1, -1)
    assert spec.is_causal is False
    assert spec.mask is spec.past_key is spec.nonpad_kv_seqlen is None


def test_attributes() -> None:
    spec = AttentionSpec.of(
        attention(Q, K, V, is_causal=1, left_window_size=2, right_window_size=3, softcap=-1.0, softmax_precision=10)
    )
    assert spec.window == (2, 0)
    assert spec.softcap == 0.0
    assert spec.softmax_precision is f16


def test_lengths_of_heads_apart_and_side_by_side() -> None:
    apart = AttentionSpec.of(attention(Q, K, V, None, *PAST))
    lengths = apart.at(apart.input_shapes())
    assert (lengths.past, lengths.keys, lengths.scale) == (7, 12, 1 / math.sqrt(8))
    assert lengths.k == Heads(2, 2, 5, 8, (80, 40, 8))
    assert lengths.y == Heads(2, 4, 3, 6, (72, 18, 6))
    flat = AttentionSpec.of(attention([2, 3, 32], [2, 5, 16], [2, 5, 12], q_num_heads=4, kv_num_heads=2, scale=0.5))
    lengths = flat.at(flat.input_shapes())
    assert lengths.q == Heads(2, 4, 3, 8, (96, 8, 32))
    assert lengths.y == Heads(2, 4, 3, 6, (72, 6, 24))
    assert (lengths.keys, lengths.scale) == (5, 0.5)


def test_lengths_of_packed_heads() -> None:
    packed = Parameter(f32, [2, 3, 48])
    spec = FusedAttentionSpec.of(FusedAttention(packed, q_num_heads=4, kv_num_heads=1, is_causal=1, rows="guarded"))
    lengths = spec.at(spec.input_shapes())
    parts = (lengths.q, lengths.k, lengths.v)
    assert [(part.heads, part.start, part.strides) for part in parts] == [
        (4, 0, (144, 8, 48)),
        (1, 32, (144, 8, 48)),
        (1, 40, (144, 8, 48)),
    ]
    assert lengths.y == Heads(2, 4, 3, 8, (96, 8, 32))
    assert (spec.window, spec.is_mask_cut) == ((-1, 0), False)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([Q, K, V], {"scale": -1.0}, "scale is -1.0; allowed: a finite number of 0 or more"),
        ([Q, K, V], {"scale": float("inf")}, "scale is inf"),
        ([Q, K, V], {"softcap": float("nan")}, "softcap is nan; allowed: a finite number"),
        ([Q, K, V], {"softmax_precision": 7}, r"softmax_precision is 7; allowed: 1 \(f32\), 10 \(f16\)"),
        ([Q, K, V], {"qk_matmul_output_mode": 4}, r"qk_matmul_output_mode is 4; allowed: 0\.\.3"),
        ([Q, K, V], {"left_window_size": -2}, "left_window_size is -2; allowed: a number of keys, or -1"),
        ([[2, 3, 32], [2, 5, 16], [2, 5, 12]], {"q_num_heads": 4}, "kv_num_heads is None; allowed: 1 or more"),
        ([Q, [2, 5, 16], [2, 5, 12]], {}, "some of Q, K and V have rank 3, others 4"),
        ([Q, K, [2, 5]], {}, "input 2 has rank 2; allowed: 3 or 4"),
        ([Q, K, V, None, PAST[0]], {}, "optional inputs are past_key; allowed: past_key and past_value together"),
        ([Q, K, V, None, *PAST, [2]], {}, "the given optional inputs are past_key and past_value and nonpad_kv_seqlen"),
    ],
)
def test_bad_attention(shapes: list[Shape], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        attention(*shapes, **attributes)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([[2, 3, 3, 8], K, V], "2 heads of K do not divide 3 heads of Q"),
        ([Q, [1, 2, 5, 8], [1, 2, 5, 6]], "must be equal"),
        ([Q, K, V, None, [2, 2, 7, 8], [2, 2, 6, 6]], r"allowed: \[\(2, 2, 7, 8\), \(2, 2, 7, 6\)\]"),
    ],
)
def test_lengths_that_do_not_fit(shapes: list[Shape], message: str) -> None:
    spec = AttentionSpec.of(attention(*(shape and [None] * len(shape) for shape in shapes)))
    with pytest.raises(OperatorSpecError, match=message):
        spec.at(shapes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([Q, K, V], {"rows": "other"}, "rows is 'other'; allowed: attention, softmax, guarded"),
        ([Q, K, V], {"scale": float("nan")}, "scale is nan; allowed: a finite number"),
        ([Q, K], {}, "only one of K and V is given"),
        ([Q], {}, "input 0 has rank 4; allowed: 3"),
        ([[2, 3, 48]], {"q_num_heads": 4}, "kv_num_heads is 0; allowed: 1 or more"),
    ],
)
def test_bad_fused_attention(shapes: list[Shape], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        FusedAttention(*map(p, shapes), **attributes)  # type: ignore[arg-type]


def flex(**attributes: Any) -> Node:
    return ops.create("FlexAttention", [p(s) for s in (Q, K, V)], attributes, domain="ai.onnx.preview")


def test_flex_attention() -> None:
    spec = FlexAttentionSpec.of(flex(scale=0.0))
    assert spec.scale is None
    assert (spec.softmax_type(f16), FlexAttentionSpec.of(flex(softmax_precision=10)).softmax_type(f32)) == (f32, f16)
    with pytest.raises(OperatorSpecError, match="scale is -2"):
        flex(scale=-2.0)


def rotary(*shapes: Shape, **attributes: Any) -> Node:
    return ops.RotaryEmbedding(*map(p, shapes, [f32, f32, f32, i64][: len(shapes)]), **attributes)


def test_rotary_lengths() -> None:
    spec = RotarySpec.of(rotary([2, 5, 24], [7, 2], [7, 2], [2, 5], num_heads=3, rotary_embedding_dim=4, interleaved=1))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.x, lengths.rotated, lengths.positions) == (Heads(2, 3, 5, 8, (120, 8, 24)), 4, 7)
    assert spec.interleaved is True
    spec = RotarySpec.of(rotary([2, 3, 5, 8], [2, 5, 4], [2, 5, 4]))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.rotated, lengths.positions) == (8, 0)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([[2, 5, 24], [2, 5, 4], [2, 5, 4]], {}, "num_heads is .*; allowed: 1 or more, as X has rank 3"),
        (
            [[2, 3, 5, 8], [2, 5, 4], [2, 5, 4]],
            {"rotary_embedding_dim": 3},
            "rotary_embedding_dim is 3; allowed: an even",
        ),
        ([[2, 3, 5, 8], [7, 4], [7, 4]], {}, "input 1 has rank 2; allowed: 3"),
    ],
)
def test_bad_rotary_embedding(shapes: list[Shape], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        rotary(*shapes, **attributes)


def test_rotary_tables_of_other_lengths() -> None:
    spec = RotarySpec.of(rotary([None, 3, 5, 8], [None, 5, 4], [None, 5, 4]))
    with pytest.raises(OperatorSpecError, match=r"allowed for X \(2, 3, 5, 8\): \(2, 5, 4\)"):
        spec.at([(2, 3, 5, 8), (3, 5, 4), (3, 5, 4)])


def test_rotary_tables_of_one_batch_are_those_of_all() -> None:
    """As torch exports them, and onnx.reference broadcasts them; the operator's text has one table for each batch."""
    spec = RotarySpec.of(rotary([None, 3, 5, 8], [None, 5, 4], [None, 5, 4]))
    assert spec.at([(2, 3, 5, 8), (1, 5, 4), (1, 5, 4)]).shares_tables
    assert not spec.at([(1, 3, 5, 8), (1, 5, 4), (1, 5, 4)]).shares_tables
