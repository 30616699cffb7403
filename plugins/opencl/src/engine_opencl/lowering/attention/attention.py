"""Attention: the ONNX operator and the internal one, which differ in the handling of NaN rows."""

from __future__ import annotations

import math

from engine.ir import Output
from engine.ir.element_type import i64
from engine.lowering import Refusal, check_attention
from engine.ops.attention import AttentionLengths, AttentionSpec, Heads
from engine.ops.internal import INTERNAL_DOMAIN, FusedAttentionSpec
from engine_opencl.elements import FLOATS, stored_type
from engine_opencl.lowering.attention.launches import AttentionOperand, Softmax, attend
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of

_SCORES = 3
"""The index of output qk_matmul_output."""


@lowers("Attention", spec=AttentionSpec)
class AttentionLowering(OpLowering[AttentionSpec]):
    """The ONNX operator, with past keys and values concatenated before new ones."""

    def check(self, spec: AttentionSpec) -> Refusal | None:
        past = [spec.past_key, spec.past_value]
        return _check_operands(spec) or check_types(past) or check_types([spec.nonpad_kv_seqlen], {i64})

    def lower(self, spec: AttentionSpec, b: LaunchPlanBuilder) -> None:
        lengths = spec.at(spec.input_shapes())
        q, k, v = _operands(spec, b, lengths)
        k, v = _with_past(spec, b, 1, k, spec.past_key), _with_past(spec, b, 2, v, spec.past_value)
        before, after = spec.window
        softmax = Softmax(
            scale=lengths.scale, softcap=spec.softcap, before=before, after=after, offset=lengths.past,
            mask=spec.mask, is_mask_cut=spec.is_mask_cut, lengths=spec.nonpad_kv_seqlen,
            shown=(spec.output(_SCORES), spec.qk_matmul_output_mode) if spec.is_read(_SCORES) else None,
        )  # fmt: skip
        attend(spec.output(), lengths.y, b, q, k, v, softmax)


@lowers("FusedAttention", domain=INTERNAL_DOMAIN, spec=FusedAttentionSpec)
class FusedAttentionLowering(OpLowering[FusedAttentionSpec]):
    """The internal operator, which adds NaN row semantics."""

    def check(self, spec: FusedAttentionSpec) -> Refusal | None:
        return _check_operands(spec)

    def lower(self, spec: FusedAttentionSpec, b: LaunchPlanBuilder) -> None:
        lengths = spec.at(spec.input_shapes())
        q, k, v = _operands(spec, b, lengths)
        before, after = spec.window
        softmax = Softmax(
            scale=lengths.scale, before=before, after=after, mask=spec.mask, is_mask_cut=spec.is_mask_cut,
            blind_is_zero=spec.rows == "attention", nan_is_zero=spec.rows == "guarded",
        )  # fmt: skip
        attend(spec.output(), lengths.y, b, q, k, v, softmax)


def _check_operands(spec: AttentionSpec | FusedAttentionSpec) -> Refusal | None:
    operands = [value for index in range(3) if (value := spec.input(index)) is not None]
    return check_attention(spec, FLOATS) or check_types([*operands, spec.output()])


def _operands(
    spec: AttentionSpec | FusedAttentionSpec, b: LaunchPlanBuilder, lengths: AttentionLengths
) -> list[AttentionOperand]:
    parts = (lengths.q, lengths.k, lengths.v)
    if isinstance(spec, FusedAttentionSpec) and spec.is_packed:
        return [AttentionOperand(b.input(spec.node.input_value(0)), heads, is_shared=True) for heads in parts]
    return [AttentionOperand(b.input(spec.node.input_value(index)), heads) for index, heads in enumerate(parts)]


def _with_past(
    spec: AttentionSpec, b: LaunchPlanBuilder, index: int, new: AttentionOperand, past: Output | None
) -> AttentionOperand:
    """Past values followed by `new`, input `index`; written to the present output if that is used."""
    if past is None and not spec.is_read(index):
        return new
    value, heads = spec.node.input_value(index), new.heads
    before = 0 if past is None else b.shape(past)[2]
    whole = (heads.batch, heads.heads, before + heads.rows, heads.size)
    size = math.prod(whole) * stored_type(value).itemsize
    target = b.output(spec.output(index)) if spec.is_read(index) else b.temporary(size)
    steps = strides_of(whole)
    strided_copy(b, value, new.buffer, target, heads.shape, (*heads.strides, 1), 0, steps, before * heads.size)
    if past is not None:
        shape = b.shape(past)
        strided_copy(b, past, b.input(past), target, shape, strides_of(shape), 0, steps, 0)
    return AttentionOperand(target, Heads.of(whole, heads.heads))
