"""Cases of Attention, LinearAttention and RotaryEmbedding: ranks, shared heads, masks, causality, windows, a past."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import f16, f64, i64
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, bools, constant, filled, real

_TERMS: Final = 200
"""The roundings of a score, and of a weighted sum over at most 70 keys, as large as the values."""


def _attention(
    what: str,
    *more: Data | None,
    heads: tuple[int, int] = (4, 4),
    length: tuple[int, int] = (9, 11),
    size: int = 16,
    num_outputs: int | None = None,
    **attributes: Any,
) -> OperatorCase:
    q, kv = heads
    data = [real(2, q, length[0], size, low=-1, high=1), *[real(2, kv, length[1], size, low=-1, high=1)] * 2]
    return case(f"Attention/{what}", [*data, *more], attributes, terms=_TERMS, factors=(2,), num_outputs=num_outputs)


CASES: Final = [
    _attention("plain"),
    _attention("long", length=(70, 70), size=64),
    _attention("one-query", length=(1, 65), size=32),
    _attention("shared-keys", heads=(6, 2)),
    _attention("scaled", scale=0.3),
    _attention("causal", is_causal=1),
    _attention("softcap", softcap=2.0),
    _attention("odd-size", size=13, length=(5, 17)),
    _attention("bool-mask", bools(9, 11)),
    _attention("bool-mask-of-each-head", bools(2, 4, 9, 11)),
    _attention("added-mask", real(1, 1, 9, 11)),
    _attention("blind-queries", filled((9, 11), (-float("inf"),))),
    _attention("past", None, real(2, 4, 6, 16, low=-1, high=1), real(2, 4, 6, 16, low=-1, high=1), num_outputs=3),
    _attention("causal-past", None, *[real(2, 4, 6, 16, low=-1, high=1)] * 2, is_causal=1),
    case("Attention/rank-3", [real(2, 9, 64, low=-1, high=1), *[real(2, 11, 32, low=-1, high=1)] * 2],
         {"q_num_heads": 4, "kv_num_heads": 2}, terms=_TERMS, factors=(2,)),
    *(
        case(f"Attention/{type.name}", [real(1, 2, 7, 8, type=type, low=-1, high=1)] * 3, terms=_TERMS, factors=(2,))
        for type in (f64, f16)
    ),
    *(
        case(f"LinearAttention/{rule}-{queries}-heads", [
            real(2, 5, queries * 8), real(2, 5, 16), real(2, 5, 2 * 37), real(2, 2, 8, 37),
            real(2, 5, 16, low=-1, high=0) if "gated" in rule else None,
            real(2, 5, 2, low=0, high=0.1) if "delta" in rule else None,
        ], {"update_rule": rule, "q_num_heads": queries, "kv_num_heads": 2}, num_outputs=2, terms=_TERMS)
        for rule in ("linear", "gated", "delta", "gated_delta")
        for queries in (2, 6)
    ),
    *(
        case(f"RotaryEmbedding/{'x'.join(map(str, shape))}-interleaved={interleaved}",
             [real(*shape), constant(real(2, shape[2], shape[3] // 2)), constant(real(2, shape[2], shape[3] // 2))],
             {"interleaved": interleaved}, terms=2, factors=(0, 1))
        for shape in ((2, 3, 5, 16), (2, 1, 7, 10))
        for interleaved in (0, 1)
    ),
    case("RotaryEmbedding/partial", [real(2, 3, 5, 16), constant(real(2, 5, 4)), constant(real(2, 5, 4))],
         {"rotary_embedding_dim": 8}, terms=2, factors=(0, 1)),
    case("RotaryEmbedding/tables-of-one-batch", [real(2, 3, 5, 16), constant(real(1, 5, 8)), constant(real(1, 5, 8))],
         terms=2, factors=(0, 1)),
    case("RotaryEmbedding/positions", [real(2, 3, 5, 16), constant(real(20, 8)), constant(real(20, 8)),
         constant(filled((2, 5), (3, 0, 19, 7, 7), i64))], terms=2, factors=(0, 1)),
]  # fmt: skip
