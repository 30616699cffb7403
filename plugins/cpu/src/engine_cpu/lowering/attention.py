"""Attention on the kernel that keeps no matrix of scores; heads are read and written where they lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engine.ir import Node, Output, boolean, f32
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.native import Attribute
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.fused_attention import ROWS
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, copy_step

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_FLOAT: Final = 1  # softmax_precision
_LENGTHS: Final = 6  # the input nonpad_kv_seqlen
_SCORES: Final = 3  # the output qk_matmul_output


@dataclass(frozen=True, slots=True)
class Heads:
    """One of Q, K, V and Y: [batch, heads, rows, size], and the elements between batches, heads and rows."""

    batch: int
    heads: int
    rows: int
    size: int
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, shape: Sequence[int], heads: int) -> Heads:
        """Of [B, H, S, D], or of [B, S, H * D]."""
        if len(shape) == 4:
            batch, heads, rows, size = shape
            return cls(batch, heads, rows, size, (heads * rows * size, rows * size, size))
        batch, rows, width = shape
        return cls(batch, heads, rows, width // heads, (rows * width, width // heads, width))


@lowers("Attention")
class AttentionLowering(OpLowering[OperatorSpec]):
    """ONNX's operator, with the keys and values of the past before those that come."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        node = spec.node
        return first_refusal(check_attention_types(node), self._check_cache(node), self._check_attributes(node))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering`."""
        node = spec.node
        heads, kv_heads = (int(attribute(node, name) or 0) for name in ("q_num_heads", "kv_num_heads"))
        values = [node.input_value(index) for index in range(3)]
        q, k, v = (Heads.of(b.shape(x), n) for x, n in zip(values, (heads, kv_heads, kv_heads), strict=True))
        scale = attribute(node, "scale")
        attributes: dict[str, Attribute] = {
            "scale": float(1 / math.sqrt(q.size) if scale is None else scale) if q.size else 1.0,
            "softcap": float(attribute(node, "softcap") or 0.0),
            "before": int(attribute(node, "left_window_size")),
            "after": 0 if attribute(node, "is_causal") else int(attribute(node, "right_window_size")),
        }
        buffers = [b.input(value) for value in values]
        parts = [q, k, v]
        for index, rows in ((1, k), (2, v)):
            past = node.input_value(3 + index) if node.has_input(3 + index) else None
            present = node.output(index) if _is_read(node, index) else None
            if past is not None or present is not None:
                buffers[index] = _joined(node, b, buffers[index], rows, past, present)
                before = 0 if past is None else b.shape(past)[2]
                attributes["offset"] = before
                parts[index] = Heads.of((rows.batch, rows.heads, before + rows.rows, rows.size), rows.heads)
        q, k, v = parts
        add_attention(node, b, buffers, (q, k, v), attributes, is_mask_cut=True)

    def _check_cache(self, node: Node) -> Refusal | None:
        if node.has_input(_LENGTHS):
            return Refusal(RefusalCause.OP, "Attention with nonpad_kv_seqlen has no kernel")
        if _is_read(node, _SCORES):
            return Refusal(RefusalCause.OP, "Attention that gives qk_matmul_output has no kernel")
        if node.has_input(4) != node.has_input(5):
            return Refusal(RefusalCause.OP, "past_key and past_value go together; expected both or neither")
        past = [node.input_value(index) for index in (4, 5) if node.has_input(index)]
        return check_types(past, F32)

    def _check_attributes(self, node: Node) -> Refusal | None:
        scale, softcap = attribute(node, "scale"), attribute(node, "softcap") or 0.0
        if scale is not None and not 0 <= scale < math.inf:
            return Refusal(RefusalCause.ATTRIBUTE, f"scale is {scale}; expected a finite number of 0 or more")
        if not 0 <= softcap < math.inf:
            return Refusal(RefusalCause.ATTRIBUTE, f"softcap is {softcap}; expected a finite number of 0 or more")
        if attribute(node, "softmax_precision") not in (None, 0, _FLOAT):
            return Refusal(
                RefusalCause.ATTRIBUTE, f"softmax_precision is {attribute(node, 'softmax_precision')}; expected f32"
            )
        return None


@lowers("FusedAttention", domain=INTERNAL_DOMAIN)
class FusedAttentionLowering(OpLowering[OperatorSpec]):
    """The internal operator: rules for rows that are no numbers, and packed inputs."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        node = spec.node
        scale = attribute(node, "scale")
        if not math.isfinite(scale):
            return Refusal(RefusalCause.ATTRIBUTE, f"scale is {scale}; expected a finite number")
        return check_attention_types(node)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering`."""
        node = spec.node
        heads, kv_heads = attribute(node, "q_num_heads"), attribute(node, "kv_num_heads")
        rows = attribute(node, "rows")
        attributes: dict[str, Attribute] = {
            "scale": float(attribute(node, "scale")),
            "after": 0 if attribute(node, "is_causal") else -1,
            "rows": ROWS.index(rows),
        }
        operands = _apart if node.has_input(1) else _packed
        buffers, parts = operands(node, b, heads, kv_heads)
        add_attention(node, b, buffers, parts, attributes, is_mask_cut=rows == "attention")


def check_attention_types(node: Node) -> Refusal | None:
    """A refusal unless Q, K, V and the result are f32, and the mask is a bool or f32 one of two to four dimensions."""
    mask = node.input_value(3) if node.has_input(3) else None
    operands = [node.input_value(index) if node.has_input(index) else None for index in range(3)]
    why = first_refusal(check_types((*operands, node.output(0)), F32), check_types((mask,), (f32, boolean)))
    if why is not None:
        return why
    if mask is not None and not 2 <= len(mask.shape) <= 4:
        return Refusal(RefusalCause.SHAPE, f"the mask is {mask.type}; expected two to four dimensions")
    return None


def add_attention(
    node: Node,
    b: SegmentBuilder,
    buffers: Sequence[int],
    parts: tuple[Heads, Heads, Heads],
    attributes: dict[str, Attribute],
    *,
    is_mask_cut: bool,
) -> None:
    """Append the step; where `is_mask_cut`, keys that the mask does not reach are forbidden, else it broadcasts."""
    q, k, v = parts
    result = Heads.of(b.shape(node.output(0)), q.heads)
    attributes |= {
        "batch": q.batch, "heads": q.heads, "kv_heads": k.heads, "queries": q.rows, "keys": k.rows,
        "size": q.size, "value_size": v.size,
        "q": q.strides, "k": k.strides, "v": v.strides, "y": result.strides,
    }  # fmt: skip
    inputs = list(buffers)
    if node.has_input(3):
        mask = node.input_value(3)
        attributes |= _mask_attributes(mask, b.shape(mask), k.rows, is_mask_cut)
        inputs.append(b.input(mask))
    b.step(node, "attention_f32", inputs, [b.output(node.output(0))], **attributes)


def _is_read(node: Node, index: int) -> bool:
    return index < node.num_outputs and node.output(index).num_consumers > 0


def _joined(node: Node, b: SegmentBuilder, buffer: int, new: Heads, past: Output | None, present: Output | None) -> int:
    """The buffer of [B, H, P + S, D]: `past`, and after it `new`, which is in `buffer`."""
    before = 0 if past is None else b.shape(past)[2]
    whole = Strided.row_major((new.batch, new.heads, before + new.rows, new.size))
    target = b.temporary(4 * math.prod(whole.shape)) if present is None else b.output(present)
    source = Strided((new.batch, new.heads, new.rows, new.size), (*new.strides, 1))
    copies = [Copy(buffer, source, target, whole.slice(2, before, new.rows))]
    if past is not None:
        copies.append(Copy(b.input(past), Strided.row_major(b.shape(past)), target, whole.slice(2, 0, before)))
    copy_step(b, node, 4, copies)
    return target


def _apart(node: Node, b: SegmentBuilder, heads: int, kv_heads: int) -> tuple[list[int], tuple[Heads, Heads, Heads]]:
    q, k, v = (node.input_value(index) for index in range(3))
    shapes = Heads.of(b.shape(q), heads), Heads.of(b.shape(k), kv_heads), Heads.of(b.shape(v), kv_heads)
    return [b.input(value) for value in (q, k, v)], shapes


def _packed(node: Node, b: SegmentBuilder, heads: int, kv_heads: int) -> tuple[list[int], tuple[Heads, Heads, Heads]]:
    """Views of the one input, each of which starts where its first head does."""
    packed = node.input_value(0)
    whole = Heads.of(b.shape(packed), heads + 2 * kv_heads)
    buffer, nbytes = b.input(packed), 4 * math.prod(b.shape(packed))
    starts = [4 * whole.size * first_head for first_head in (0, heads, heads + kv_heads)]
    buffers = [b.part(buffer, start, nbytes - start) if nbytes else buffer for start in starts]
    q, k, v = (replace(whole, heads=count) for count in (heads, kv_heads, kv_heads))
    return buffers, (q, k, v)


def _mask_attributes(mask: Output, shape: Sequence[int], keys: int, is_cut: bool) -> dict[str, Attribute]:
    shape = (*[1] * (4 - len(shape)), *shape)
    strides, stride = [], 1
    for length in reversed(shape):
        strides.append(0 if length == 1 else stride)
        stride *= length
    return {
        "mask": 2 if mask.element_type is boolean else 1,
        "mask_strides": strides[::-1],
        "mask_keys": shape[-1] if is_cut else keys,
    }
