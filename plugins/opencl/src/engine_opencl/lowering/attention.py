"""Attention: two products that read heads where they lie, and between them a softmax that knows masks and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import boolean, i64
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.registry import attribute
from engine_opencl.elements import FLOATS
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.products import Epilogue, Product, launch_product
from engine_opencl.lowering.registry import OpLowering, Refusal, check_types, lowers
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import kernel_source, kernel_text, strides_of

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(3, 7)
_SCORES: Final = 3
"""The output qk_matmul_output."""
_FLOAT: Final = 1
"""What softmax_precision calls f32."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Q, K, V or Y, [batch, heads, rows, size], in memory; strides between batches, heads and rows."""

    buffer: Buffer
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, buffer: Buffer, shape: Sequence[int], heads: int) -> Heads:
        """Of [B, H, S, D], or of [B, S, H * D]."""
        if len(shape) == 4:
            batch, heads, rows, size = shape
            return cls(buffer, (batch, heads, rows, size), (heads * rows * size, rows * size, size))
        batch, rows, width = shape
        size = width // heads
        return cls(buffer, (batch, heads, rows, size), (rows * width, size, width))


@dataclass(frozen=True, slots=True)
class Softmax:
    """What happens between the two products.

    Attributes:
        before, after: how many keys before and behind its own place a query may see; -1 is no bound.
        offset: the place of the first query among the keys.
        lengths: how many keys of each batch are there, [batch] i64; queries are then the last of them.
        is_mask_cut: keys that the mask does not reach are forbidden; else the mask is broadcast.
        blind_is_zero, nan_is_zero: rows that see no key, or shares that are no numbers, are zeros.
        shown: what to write to, and after which stage.
    """

    scale: float
    softcap: float = 0.0
    before: int = -1
    after: int = -1
    offset: int = 0
    mask: Output | None = None
    is_mask_cut: bool = True
    lengths: Output | None = None
    blind_is_zero: bool = True
    nan_is_zero: bool = False
    shown: tuple[Buffer, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the scores are as the product left them, and nobody asks for them."""
        bounds = (self.before, self.after) == (-1, -1)
        return bounds and not self.softcap and self.mask is None and self.lengths is None and self.shown is None


@lowers("Attention")
class AttentionLowering(OpLowering):
    """ONNX's operator, with the keys and values of the past before those that come."""

    def check(self, node: Node) -> Refusal | None:
        scale, softcap = attribute(node, "scale"), attribute(node, "softcap") or 0.0
        if scale is not None and not 0 <= scale < math.inf:
            return Refusal("attribute", f"scale is {scale}; expected a finite number of 0 or more")
        if not 0 <= softcap < math.inf:
            return Refusal("attribute", f"softcap is {softcap}; expected a finite number of 0 or more")
        if attribute(node, "softmax_precision") not in (None, 0, _FLOAT):
            return Refusal("attribute", f"softmax_precision is {attribute(node, 'softmax_precision')}; expected f32")
        if _has(node, _PAST_KEY) != _has(node, _PAST_VALUE) or (_has(node, _PAST_KEY) and _has(node, _LENGTHS)):
            return Refusal("attribute", "past_key and past_value go together, and not with nonpad_kv_seqlen")
        past = [node.input_value(index) for index in (_PAST_KEY, _PAST_VALUE) if _has(node, index)]
        lengths = [node.input_value(_LENGTHS)] if _has(node, _LENGTHS) else []
        return _check_operands(node) or check_types(past) or check_types(lengths, {i64})

    def lower(self, node: Node, b: PlanBuilder) -> None:
        counts = [int(attribute(node, name) or 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        q, k, v = (
            Heads.of(b.input(node.input_value(i)), b.shape(node.input_value(i)), n) for i, n in enumerate(counts)
        )
        k, v = _with_past(node, b, 1, k), _with_past(node, b, 2, v)
        scale = attribute(node, "scale")
        size = q.shape[3]
        shown = None
        if _is_read(node, _SCORES):
            shown = b.output(node.output(_SCORES)), int(attribute(node, "qk_matmul_output_mode"))
        softmax = Softmax(
            scale=float((1 / math.sqrt(size) if size else 1.0) if scale is None else scale),
            softcap=float(attribute(node, "softcap") or 0.0),
            before=int(attribute(node, "left_window_size")),
            after=0 if attribute(node, "is_causal") else int(attribute(node, "right_window_size")),
            offset=b.shape(node.input_value(_PAST_KEY))[2] if _has(node, _PAST_KEY) else 0,
            mask=node.input_value(_MASK) if _has(node, _MASK) else None,
            lengths=node.input_value(_LENGTHS) if _has(node, _LENGTHS) else None,
            shown=shown,
        )
        attend(node.output(0), b, q, k, v, softmax)


@lowers("FusedAttention", domain=INTERNAL_DOMAIN)
class FusedAttentionLowering(OpLowering):
    """The internal operator: with rules for rows that are no numbers."""

    def check(self, node: Node) -> Refusal | None:
        if not _has(node, 1):
            return Refusal("attribute", "queries, keys and values are packed; expected them apart")
        if not math.isfinite(attribute(node, "scale")):
            return Refusal("attribute", f"scale is {attribute(node, 'scale')}; expected a finite number")
        return _check_operands(node)

    def lower(self, node: Node, b: PlanBuilder) -> None:
        counts = [int(attribute(node, name)) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        q, k, v = (
            Heads.of(b.input(node.input_value(i)), b.shape(node.input_value(i)), n) for i, n in enumerate(counts)
        )
        rows = attribute(node, "rows")
        softmax = Softmax(
            scale=float(attribute(node, "scale")),
            after=0 if attribute(node, "is_causal") else -1,
            mask=node.input_value(_MASK) if _has(node, _MASK) else None,
            is_mask_cut=rows == "attention",
            blind_is_zero=rows == "attention",
            nan_is_zero=rows == "guarded",
        )
        attend(node.output(0), b, q, k, v, softmax)


def _check_operands(node: Node) -> Refusal | None:
    """A refusal unless Q, K, V and the result are floating point and the mask has two to four dimensions."""
    mask = node.input_value(_MASK) if _has(node, _MASK) else None
    operands = [node.input_value(index) for index in range(3)]
    if refused := check_types((*operands, node.output(0))) or check_types((mask,), {*FLOATS, boolean}):
        return refused
    if mask is not None and not 2 <= len(mask.shape) <= 4:
        return Refusal("attribute", f"the mask is {mask.type}; expected two to four dimensions")
    return None


def _has(node: Node, index: int) -> bool:
    return node.num_inputs > index and node.has_input(index)


def _is_read(node: Node, index: int) -> bool:
    return node.num_outputs > index and bool(node.output(index).target_inputs)


def _with_past(node: Node, b: PlanBuilder, index: int, new: Heads) -> Heads:
    """`new`, input `index`, behind what the past holds; and the whole where it is an output that is read."""
    past = node.input_value(index + 3) if _has(node, index + 3) else None
    is_read = _is_read(node, index)
    if past is None and not is_read:
        return new
    batch, heads, rows, size = new.shape
    before = 0 if past is None else b.shape(past)[2]
    whole = (batch, heads, before + rows, size)
    value = node.input_value(index)
    target = b.output(node.output(index)) if is_read else b.temporary(math.prod(whole) * 4)
    steps = strides_of(whole)
    strided_copy(b, value, new.buffer, target, new.shape, (*new.strides, 1), 0, steps, before * size)
    if past is not None:
        shape = b.shape(past)
        strided_copy(b, past, b.input(past), target, shape, strides_of(shape), 0, steps, 0)
    return Heads.of(target, whole, heads)


def attend(y: Output, b: PlanBuilder, q: Heads, k: Heads, v: Heads, softmax: Softmax) -> None:
    """Launch softmax(q k^T * scale + bias) v; heads of K and V that are fewer serve several of Q each."""
    batch, heads, queries, size = q.shape
    shared, keys = k.shape[1], k.shape[2]
    group = heads // max(shared, 1)
    groups = (batch, shared, group)
    scores = b.temporary(batch * heads * queries * keys * 4)
    q_steps = (q.strides[0], q.strides[1] * group, q.strides[1])
    product = Product(queries, keys, size, groups, q_steps, (*k.strides[:2], 0), (q.strides[2], 1), (1, k.strides[2]))
    launch_product(b, product, Epilogue(alpha=softmax.scale), q.buffer, k.buffer, scores)
    if keys:
        _launch_softmax(b, softmax, scores, (batch, heads, queries, keys))
    result = b.output(y)
    whole = (batch, heads, queries, v.shape[3])
    final = Heads.of(result, b.shape(y), heads)
    is_in_place = final.strides == Heads.of(result, whole, heads).strides or heads == 1
    target = result if is_in_place else b.temporary(math.prod(whole) * 4)
    rows = tuple(n * queries * keys for n in (heads, group, 1))
    product = Product(
        queries,
        v.shape[3],
        keys,
        groups,
        rows,
        (*v.strides[:2], 0),
        (keys, 1),
        (v.strides[2], 1),
    )
    launch_product(b, product, Epilogue(), scores, v.buffer, target)
    if not is_in_place:
        strided_copy(b, y, target, result, whole, strides_of(whole), 0, (*final.strides, 1), 0)


def _launch_softmax(b: PlanBuilder, softmax: Softmax, scores: Buffer, shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    is_cpu = b.facts.kind == "cpu"
    lanes = 32
    while lanes < min(keys, 256, b.facts.max_work_group):
        lanes *= 2
    cap = literal(softmax.softcap)
    arguments: list[Given] = [scores]
    defines: dict[str, object] = {}
    if softmax.mask is not None:
        arguments.append(b.input(softmax.mask))
        defines = _mask_defines(softmax.mask, b.shape(softmax.mask), keys, softmax.is_mask_cut)
    if softmax.lengths is not None:
        arguments.append(b.input(softmax.lengths))
    if softmax.shown is not None:
        arguments.append(softmax.shown[0])
    source = kernel_source(
        "attention_scores",
        HEADS=heads, QUERIES=queries, KEYS=keys, LANES=lanes, OFFSET=softmax.offset, BEFORE=softmax.before,
        AFTER=softmax.after, MASK=int(softmax.mask is not None), LENGTHS=int(softmax.lengths is not None),
        SHOWN=int(softmax.shown is not None), STAGE=softmax.shown[1] if softmax.shown else 0,
        SOFTCAP=f"score = tanh(score / {cap}) * {cap};" if softmax.softcap else "", QUERY_AXIS=int(not is_cpu),
        BLIND_IS_ZERO=int(softmax.blind_is_zero), NAN_IS_ZERO=int(softmax.nan_is_zero),
        IS_PLAIN=int(softmax.is_plain), **defines,
    )  # fmt: skip
    source += kernel_text("attention_rows" if is_cpu else "attention_groups")
    if is_cpu:
        b.launch(source, "attention_softmax", arguments, (queries, batch * heads))
    else:
        b.launch(source, "attention_softmax", arguments, (lanes, queries, batch * heads), (lanes, 1, 1))


def _mask_defines(mask: Output, shape: Sequence[int], keys: int, is_cut: bool) -> dict[str, object]:
    full = (*[1] * (4 - len(shape)), *shape)
    steps = [0 if n == 1 else step for n, step in zip(full, strides_of(full), strict=True)]
    code = "((from)[at] ? 0.0f : -INFINITY)" if mask.element_type is boolean else "load_real(from, at)"
    return {
        **{f"MASK_{name}": step for name, step in zip("BHQK", steps, strict=True)},
        "MASK_KEYS": full[-1] if is_cut else keys,
        "MASK_T": "uchar" if mask.element_type is boolean else "real",
        "MASK_BIAS(from, at)": code,
    }
