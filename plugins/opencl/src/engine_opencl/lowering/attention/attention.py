"""Attention, ONNX's and the internal one, which differ in what becomes of rows that are no numbers."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node
from engine.ir.element_type import boolean, i64
from engine.lowering import Refusal, RefusalCause
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS, stored_type
from engine_opencl.lowering.attention.launches import Heads, Softmax, attend
from engine_opencl.lowering.movement import strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import strides_of

_MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(3, 7)
_SCORES: Final = 3
"""The output qk_matmul_output."""
_FLOAT: Final = 1
"""What softmax_precision calls f32."""


@lowers("Attention")
class AttentionLowering(OpLowering[OperatorSpec]):
    """ONNX's operator, with the keys and values of the past before those that come."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        scale, softcap = attribute(node, "scale"), attribute(node, "softcap") or 0.0
        if scale is not None and not 0 <= scale < math.inf:
            return Refusal(RefusalCause.ATTRIBUTE, f"scale is {scale}; expected a finite number of 0 or more")
        if not 0 <= softcap < math.inf:
            return Refusal(RefusalCause.ATTRIBUTE, f"softcap is {softcap}; expected a finite number of 0 or more")
        if attribute(node, "softmax_precision") not in (None, 0, _FLOAT):
            return Refusal(
                RefusalCause.ATTRIBUTE, f"softmax_precision is {attribute(node, 'softmax_precision')}; expected f32"
            )
        if _has(node, _PAST_KEY) != _has(node, _PAST_VALUE) or (_has(node, _PAST_KEY) and _has(node, _LENGTHS)):
            return Refusal(RefusalCause.ATTRIBUTE, "past_key and past_value go together, and not with nonpad_kv_seqlen")
        past = [node.input_value(index) for index in (_PAST_KEY, _PAST_VALUE) if _has(node, index)]
        lengths = [node.input_value(_LENGTHS)] if _has(node, _LENGTHS) else []
        return _check_operands(node) or check_types(past) or check_types(lengths, {i64})

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        counts = [int(attribute(node, name) or 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        q, k, v = (
            Heads.of(b.input(node.input_value(i)), b.shape(node.input_value(i)), n) for i, n in enumerate(counts)
        )
        k, v = _with_past(node, b, 1, k), _with_past(node, b, 2, v)
        scale = attribute(node, "scale")
        size = q.shape[3]
        shown = None
        if _is_read(node, _SCORES):
            shown = node.output(_SCORES), int(attribute(node, "qk_matmul_output_mode"))
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
class FusedAttentionLowering(OpLowering[OperatorSpec]):
    """The internal operator: with rules for rows that are no numbers."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if not _has(node, 1):
            return Refusal(RefusalCause.ATTRIBUTE, "queries, keys and values are packed; expected them apart")
        if not math.isfinite(attribute(node, "scale")):
            return Refusal(RefusalCause.ATTRIBUTE, f"scale is {attribute(node, 'scale')}; expected a finite number")
        return _check_operands(node)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
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
        return Refusal(RefusalCause.ATTRIBUTE, f"the mask is {mask.type}; expected two to four dimensions")
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
    target = b.output(node.output(index)) if is_read else b.temporary(math.prod(whole) * stored_type(value).itemsize)
    steps = strides_of(whole)
    strided_copy(b, value, new.buffer, target, new.shape, (*new.strides, 1), 0, steps, before * size)
    if past is not None:
        shape = b.shape(past)
        strided_copy(b, past, b.input(past), target, shape, strides_of(shape), 0, steps, 0)
    return Heads.of(target, whole, heads)
