"""`FusedAttention`: attention with selectable treatment of rows of NaN, and optionally packed inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import Constant, Node, Output, OutputLike, boolean
from engine.ops.attention import AttentionLengths, Heads, attention_lengths
from engine.ops.create import create
from engine.ops.internal.definition import FLOATS, define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, check_choice, check_rank, refuse, specifies
from engine.startup import dataclass

ROWS: Final = ("attention", "softmax", "guarded")
"""The treatment of rows of probabilities that are NaN, in the order of the kernels' numbers:

rows that see no key are zeros, as in ONNX's Attention; all stay NaN, as after Softmax; all are zeros, as after
Where(IsNaN(p), 0, p).
"""


def FusedAttention(  # noqa: N802 - constructors of operators are called as the operators are
    q: OutputLike,
    k: OutputLike | None = None,
    v: OutputLike | None = None,
    mask: OutputLike | None = None,
    *,
    rows: str = "attention",
    scale: float = 1.0,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Node:
    """softmax(q k^T * scale + mask) v.

    Args:
        q: [B, H, S, D] or [B, S, H * D]; without `k` and `v`, all three side by side: [B, S, (H + 2 * HK) * D].
        k: [B, HK, T, D] or [B, T, HK * D]; HK divides H.
        v: [B, HK, T, E] or [B, T, HK * E].
        mask: added to the scores [B, H, S, T], or of bool: False masks a key.
        rows: one of `ROWS`.
        scale: the factor of the scores.
        is_causal: 1 if query i sees only keys up to i.
        q_num_heads: H, for inputs of three dimensions.
        kv_num_heads: HK, for inputs of three dimensions.
    """
    attributes = {
        "rows": rows,
        "scale": scale,
        "is_causal": is_causal,
        "q_num_heads": q_num_heads,
        "kv_num_heads": kv_num_heads,
    }
    return create("FusedAttention", [q, k, v, mask], attributes, domain=INTERNAL_DOMAIN)


@specifies("FusedAttention", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAttentionSpec(OperatorSpec):
    """The attributes of `FusedAttention`, which documents them.

    Attributes:
        kv_num_heads: 0 is allowed for inputs of rank 4, as for q_num_heads.
        rows: one of `ROWS`.
    """

    is_causal: bool
    kv_num_heads: int
    q_num_heads: int
    rows: str
    scale: float

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "rows", given["rows"], ROWS)
        if not math.isfinite(given["scale"]):
            refuse(node, "scale", given["scale"], "a finite number")
        is_packed = not node.has_input(1)
        if is_packed == node.has_input(2):
            raise OperatorSpecError(f"{node}: only one of K and V is given; allowed: both, or none if Q holds all")
        ranks = {check_rank(node, index, *((3,) if is_packed else (3, 4))) for index in range(3)} - {None}
        if len(ranks) > 1:
            raise OperatorSpecError(f"{node}: some of Q, K and V have rank 3, others 4; allowed: equal ranks")
        for name in ("q_num_heads", "kv_num_heads"):
            if given[name] < (1 if 3 in ranks else 0):
                refuse(node, name, given[name], "1 or more, as the inputs have rank 3" if 3 in ranks else "0 or more")

    @property
    def is_packed(self) -> bool:
        """Whether the first input contains Q, K and V side by side."""
        return not self.node.has_input(1)

    @property
    def mask(self) -> Output | None:
        """The mask: added to the scores, or of bool, where False masks a key."""
        return self.input(3)

    @property
    def is_mask_cut(self) -> bool:
        """Whether keys beyond the mask's length are masked; otherwise, the mask is broadcast."""
        return self.rows == "attention"

    @property
    def window(self) -> tuple[int, int]:
        """The number of keys before and after its own position that a query sees; -1 is unlimited."""
        return -1, 0 if self.is_causal else -1

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AttentionLengths:
        """The facts that follow from the inputs' shapes; Q, K and V of a packed input share their memory.

        Raises `OperatorSpecError` if the shapes do not fit.
        """
        packed, count, kv_count = shapes[0], self.q_num_heads, self.kv_num_heads
        if not self.is_packed or packed is None:
            return attention_lengths(self.node, shapes, count, kv_count, self.scale)
        parts = count + 2 * kv_count
        if packed[2] % parts or count % kv_count:
            raise OperatorSpecError(
                f"{self.node}: {count} heads of Q and {kv_count} each of K and V do not divide the width {packed[2]}"
            )
        whole = Heads.of(packed, parts)
        q, k, v = (
            replace(whole, heads=each, start=whole.size * first)
            for first, each in ((0, count), (count, kv_count), (count + kv_count, kv_count))
        )
        y = Heads.of((whole.batch, whole.rows, count * whole.size), count)
        return AttentionLengths(q=q, k=k, v=v, y=y, past=0, scale=self.scale)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    q, k, v, mask = padded(inputs, 4)
    assert q is not None
    spec = FusedAttentionSpec.of(node)
    heads, kv_heads = spec.q_num_heads, spec.kv_num_heads
    if k is None or v is None:
        q, k, v = _unpacked(node, q, heads, kv_heads)
    if spec.rows == "attention":
        attributes: dict[str, Any] = {"scale": spec.scale, "is_causal": int(spec.is_causal)}
        if heads:
            attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
        return [create("Attention", [q, k, v, mask], attributes).output(0)]
    if q.shape.rank.is_dynamic:
        fail(node, "the rank of Q is unknown; expected rank 4, [B, H, S, D], or 3, [B, S, H * D]")
    is_flat = len(q.shape) == 3
    if is_flat:
        q, k, v = (_split_heads(node, x, n) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    result = _weighted(spec, q, k, v, mask)
    if is_flat:
        turned = create("Transpose", [result], {"perm": (0, 2, 1, 3)}).output(0)
        result = _reshaped(turned, [0, 0, _length(turned, 2) * _length(turned, 3)])
    return [result]


def _unpacked(node: Node, packed: Output, heads: int, kv_heads: int) -> tuple[Output, Output, Output]:
    width = packed.shape[-1] if packed.shape.rank.is_static and len(packed.shape) == 3 else None
    parts = heads + 2 * kv_heads
    if width is None or width.is_dynamic or not heads or not kv_heads or width.get_length() % parts:
        fail(
            node,
            f"packed Q, K and V of {heads}, {kv_heads} and {kv_heads} heads are {packed.type}; expected [B, S, width]",
        )
    size = width.get_length() // parts
    sizes = Constant(np.array([heads * size, kv_heads * size, kv_heads * size], np.int64))
    split = create("Split", [packed, sizes], {"axis": -1}, num_outputs=3)
    return split.output(0), split.output(1), split.output(2)


def _split_heads(node: Node, value: Output, heads: int) -> Output:
    width = value.shape[2]
    if not heads or width.is_dynamic or width.get_length() % heads:
        fail(node, f"{heads} heads do not divide an input {value.type}; expected [B, S, heads * size]")
    parts = _reshaped(value, [0, 0, heads, width.get_length() // heads])
    return create("Transpose", [parts], {"perm": (0, 2, 1, 3)}).output(0)


def _weighted(spec: FusedAttentionSpec, q: Output, k: Output, v: Output, mask: Output | None) -> Output:
    """Attention of inputs [B, H, S, D]."""
    count, kv_count = _length(q, 1), _length(k, 1)
    if count != kv_count:
        if not kv_count or count % kv_count:
            fail(spec.node, f"{kv_count} heads of K and V do not divide {count} heads of Q")
        k, v = (_repeated(x, count // kv_count) for x in (k, v))
    scaled = create("Mul", [q, _number(spec.scale, q)])
    scores = create("MatMul", [scaled, create("Transpose", [k], {"perm": (0, 1, 3, 2)})]).output(0)
    if spec.is_causal:
        ends = create("Shape", [scores], {"start": -2})
        forbidden = create("Expand", [_number(-np.inf, q), ends])
        above = create("Trilu", [forbidden, Constant(np.array(1, np.int64))], {"upper": 1})
        scores = create("Add", [scores, above]).output(0)
    if mask is not None:
        if mask.element_type is boolean:
            mask = create("Where", [mask, _number(0.0, q), _number(-np.inf, q)]).output(0)
        elif mask.element_type is not q.element_type:
            mask = create("CastLike", [mask, q]).output(0)
        scores = create("Add", [scores, mask]).output(0)
    share = create("Softmax", [scores], {"axis": -1})
    if spec.rows == "guarded":
        share = create("Where", [create("IsNaN", [share]), _number(0.0, q), share])
    return create("MatMul", [share, v]).output(0)


def _repeated(value: Output, count: int) -> Output:
    """[B, HK, T, D] with each head repeated `count` times."""
    order = np.repeat(np.arange(_length(value, 1), dtype=np.int64), count)
    return create("Gather", [value, Constant(order)], {"axis": 1}).output(0)


def _reshaped(value: Output, dims: list[int]) -> Output:
    return create("Reshape", [value, Constant(np.array(dims, np.int64))]).output(0)


def _number(value: Any, like: Output) -> Constant:
    return Constant(np.asarray(value, np.float64 if like.element_type.bits == 64 else np.float32), like.element_type)


def _length(value: Output, axis: int) -> int:
    dim = value.shape[axis]
    return dim.get_length() if dim.is_static else 0


define(
    "FusedAttention",
    [("Q", False), ("K", True), ("V", True), ("mask", True)],
    {"rows": "attention", "scale": 1.0, "is_causal": 0, "q_num_heads": 0, "kv_num_heads": 0},
    _decompose,
    "softmax(Q K^T * scale + mask) V, with a rule for rows of NaN.",
    types={"mask": [*FLOATS, "tensor(bool)"]},
)
