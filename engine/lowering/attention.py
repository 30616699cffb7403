"""Checks of attention shared by devices whose kernels compute scores in f32."""

from __future__ import annotations

from collections.abc import Collection

from engine.ir import ElementType, boolean, f32
from engine.lowering.checks import check_types
from engine.lowering.refusal import Refusal, RefusalCause
from engine.ops.attention import AttentionSpec
from engine.ops.internal import FusedAttentionSpec


def check_attention(spec: AttentionSpec | FusedAttentionSpec, floats: Collection[ElementType]) -> Refusal | None:
    """A refusal unless operands and result have types in `floats`, the mask one of these or bool, and rank 2 to 4."""
    operands = [spec.input(index) for index in range(3)]
    if isinstance(spec, AttentionSpec):
        operands += [spec.past_key, spec.past_value]
        if spec.softmax_precision not in (None, f32):
            found = spec.softmax_precision.name
            return Refusal(RefusalCause.ATTRIBUTE, f"softmax_precision is {found}; kernels compute in f32")
    if refused := check_types((*operands, spec.output()), floats) or check_types((spec.mask,), {*floats, boolean}):
        return refused
    if spec.mask is not None and not 2 <= len(spec.mask.shape) <= 4:
        return Refusal(RefusalCause.RANK, f"the mask is {spec.mask.type}; expected rank 2, 3 or 4")
    return None
