"""Attention with a kernel that does not store the score matrix; heads are read and written in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engine.ir import Node, Output
from engine.ir.element_type import i64
from engine.lowering import Refusal, RefusalCause, check_attention, check_types
from engine.native import Attribute, has_feature
from engine.ops.attention import AttentionLengths, AttentionSpec, Heads
from engine.ops.internal import INTERNAL_DOMAIN, FusedAttentionSpec
from engine_cpu.cache_formats import F32 as CACHE_F32
from engine_cpu.cache_formats import CacheFormat
from engine_cpu.in_place import InPlace
from engine_cpu.lowering.checks import F32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, append_step, copy_step
from engine_cpu.lowering.visible_keys import window_up_to_own
from engine_cpu.segment import SegmentBuilder

_SCORES = 3
"""The index of output qk_matmul_output."""


@lowers("Attention", spec=AttentionSpec)
class AttentionLowering(OpLowering[AttentionSpec]):
    """The ONNX operator, with past keys and values concatenated before new ones."""

    def check(self, spec: AttentionSpec) -> Refusal | None:
        if spec.is_read(_SCORES):
            return Refusal(RefusalCause.OP, "Attention with output qk_matmul_output has no kernel")
        lengths = spec.nonpad_kv_seqlen
        return check_attention(spec, F32) or (None if lengths is None else check_types([lengths], {i64}))

    def lower(self, spec: AttentionSpec, b: SegmentBuilder) -> None:
        node, lengths = spec.node, spec.at(spec.input_shapes())
        buffers = [b.input(node.input_value(index)) for index in range(3)]
        pasts, parts = (spec.past_key, spec.past_value), [lengths.k, lengths.v]
        for i, (new, past) in enumerate(zip(parts, pasts, strict=True)):
            present = spec.output(1 + i) if spec.is_read(1 + i) else None
            if past is not None or present is not None:
                buffers[1 + i] = _joined(node, b, buffers[1 + i], new, past, present)
                parts[i] = Heads.of((new.batch, new.heads, lengths.keys, new.size), new.heads)
        k, v = parts
        _add_step(spec, b, buffers, replace(lengths, k=k, v=v), {"softcap": spec.softcap, "offset": lengths.past})


@lowers("FusedAttention", domain=INTERNAL_DOMAIN, spec=FusedAttentionSpec)
class FusedAttentionLowering(OpLowering[FusedAttentionSpec]):
    """The internal operator, which adds NaN row semantics and packed inputs."""

    def check(self, spec: FusedAttentionSpec) -> Refusal | None:
        return check_attention(spec, F32)

    def lower(self, spec: FusedAttentionSpec, b: SegmentBuilder) -> None:
        lengths = spec.at(spec.input_shapes())
        if spec.is_packed:
            buffers = _parts_of_packed(spec, b, lengths)
        else:
            buffers = [b.input(spec.node.input_value(index)) for index in range(3)]
        _add_step(spec, b, buffers, lengths, {"rows": spec.rows})


def _add_step(
    spec: AttentionSpec | FusedAttentionSpec,
    b: SegmentBuilder,
    buffers: Sequence[int],
    lengths: AttentionLengths,
    more: dict[str, Attribute],
) -> None:
    """Append the step, for keys and values that include past ones."""
    q, (k, k_format), (v, v_format) = lengths.q, _in_place(spec, b, 1, lengths.k), _in_place(spec, b, 2, lengths.v)
    before, after = spec.window
    attributes: dict[str, Attribute] = {
        "batch": q.batch, "heads": q.heads, "kv_heads": k.heads, "queries": q.rows, "keys": k.rows,
        "size": q.size, "value_size": v.size, "scale": lengths.scale, "before": before, "after": after,
        "q": q.strides, "k": k.strides, "v": v.strides, "y": lengths.y.strides, **more,
    }  # fmt: skip
    for name, kept in (("k_format", k_format), ("v_format", v_format)):
        if kept is not CACHE_F32:
            attributes[name] = kept.name
    inputs = list(buffers)
    state = _state(spec, b, 1)
    seen = None
    if spec.mask is not None and state is not None and before == after == -1:
        seen = window_up_to_own(spec.mask, state)
    if state is not None and seen is not None:
        # Keys that no query of a block sees are not read.
        attributes |= {"before": seen, "after": 0, "offset": state.past_length}
    elif spec.mask is not None:
        attributes |= _mask_attributes(spec.mask, b.shape(spec.mask), k.rows, is_cut=spec.is_mask_cut)
        inputs.append(b.input(spec.mask))
    if isinstance(spec, AttentionSpec) and spec.nonpad_kv_seqlen is not None:
        attributes["lengths"] = 1
        inputs.append(b.input(spec.nonpad_kv_seqlen))
    is_in_bf16 = b.precision == "bf16" and has_feature(b.isa, "amx_bf16")
    kernel = "attention_bf16" if is_in_bf16 else "attention_f32"
    b.step(spec.node, kernel, inputs, [b.output(spec.output())], **attributes)


def _in_place(
    spec: AttentionSpec | FusedAttentionSpec, b: SegmentBuilder, index: int, heads: Heads
) -> tuple[Heads, CacheFormat]:
    """The keys or values, in the memory of their variable if a plan appends to it in place, and their format."""
    state = _state(spec, b, index)
    if state is None:
        return heads, CACHE_F32
    strides = state.strides
    if len(strides) == 4:
        return replace(heads, strides=(strides[0], strides[1], strides[2])), state.format
    return replace(heads, strides=(strides[0], heads.size, strides[1])), state.format


def _state(spec: AttentionSpec | FusedAttentionSpec, b: SegmentBuilder, index: int) -> InPlace | None:
    """The variable that has the keys or values, if a plan appends to it in place."""
    given = b.state(spec.node.input_value(index) if spec.node.has_input(index) else None)
    return given or (b.state(spec.node.output(index)) if spec.node.num_outputs > index else None)


def _joined(node: Node, b: SegmentBuilder, buffer: int, new: Heads, past: Output | None, present: Output | None) -> int:
    """The buffer of [B, H, P + S, D]: `past`, followed by `new`, which is in `buffer`."""
    if (state := b.state(present)) is not None:
        return append_step(b, node, state, buffer, Strided(new.shape, (*new.strides, 1)))
    before = 0 if past is None else b.shape(past)[2]
    whole = Strided.row_major((new.batch, new.heads, before + new.rows, new.size))
    target = b.temporary(4 * math.prod(whole.shape)) if present is None else b.output(present)
    source = Strided(new.shape, (*new.strides, 1))
    copies = [Copy(buffer, source, target, whole.slice(2, before, new.rows))]
    if past is not None:
        copies.append(Copy(b.input(past), Strided.row_major(b.shape(past)), target, whole.slice(2, 0, before)))
    copy_step(b, node, 4, copies)
    return target


def _parts_of_packed(spec: FusedAttentionSpec, b: SegmentBuilder, lengths: AttentionLengths) -> list[int]:
    """Views of the packed input, each starting at its first head."""
    packed = spec.node.input_value(0)
    buffer, nbytes = b.input(packed), 4 * math.prod(b.shape(packed))
    starts = [4 * part.start for part in (lengths.q, lengths.k, lengths.v)]
    return [b.part(buffer, start, nbytes - start) if nbytes else buffer for start in starts]


def _mask_attributes(mask: Output, shape: Sequence[int], keys: int, *, is_cut: bool) -> dict[str, Attribute]:
    shape = (*[1] * (4 - len(shape)), *shape)
    strides, stride = [], 1
    for length in reversed(shape):
        strides.append(0 if length == 1 else stride)
        stride *= length
    return {
        "mask": mask.element_type.name,
        "mask_strides": strides[::-1],
        "mask_keys": shape[-1] if is_cut else keys,
    }
