"""LinearAttention: a state of each head, updated token by token."""

from __future__ import annotations

import math

from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_DECAYING = frozenset({"gated", "gated_delta"})
_CORRECTING = frozenset({"delta", "gated_delta"})


@lowers("LinearAttention")
class LinearAttentionLowering(OpLowering[OperatorSpec]):
    """All update rules, with groups of queries, in f32."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        return first_refusal(check_f32(spec.node), _check_rule(spec), _check_ranks(spec))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """See `OpLowering`."""
        node = spec.node
        heads, queries = int(attribute(node, "kv_num_heads")), int(attribute(node, "q_num_heads"))
        query, key, value = (node.input_value(index) for index in range(3))
        batch, tokens, _ = b.shape(query)
        keys, values = b.shape(query)[2] // queries, b.shape(value)[2] // heads
        past, decay, beta = (spec.input(index) for index in (3, 4, 5))
        scale = attribute(node, "scale")
        given = [each for each in (query, key, value, past, decay, beta) if each is not None]
        outputs = [b.output(spec.output())]
        if node.num_outputs > 1:
            outputs.append(b.output(node.output(1)))
        else:
            outputs.append(b.temporary(4 * batch * heads * keys * values))
        b.step(
            node,
            "linear_attention_f32",
            [b.input(each) for each in given],
            outputs,
            batch=batch,
            tokens=tokens,
            heads=heads,
            group=queries // heads,
            keys=keys,
            values=values,
            decays=0 if decay is None else b.shape(decay)[2] // heads,
            betas=0 if beta is None else b.shape(beta)[2],
            past=int(past is not None),
            scale=float(scale) if scale else 1 / math.sqrt(keys),
        )


def _check_rule(spec: OperatorSpec) -> Refusal | None:
    rule = attribute(spec.node, "update_rule") or "gated_delta"
    rule = rule.decode() if isinstance(rule, bytes) else rule
    heads, queries = attribute(spec.node, "kv_num_heads"), attribute(spec.node, "q_num_heads")
    if heads < 1 or queries < 1 or queries % heads:
        return Refusal(RefusalCause.ATTRIBUTE, f"{queries} heads of queries are no multiple of {heads}")
    needed = (rule in _DECAYING, rule in _CORRECTING)
    if (spec.input(4) is not None, spec.input(5) is not None) != needed:
        return Refusal(RefusalCause.ATTRIBUTE, f"update_rule {rule!r} does not fit the inputs decay and beta")
    return None


def _check_ranks(spec: OperatorSpec) -> Refusal | None:
    """Heads divide the last dimensions, which must be known."""
    heads, queries = attribute(spec.node, "kv_num_heads"), attribute(spec.node, "q_num_heads")
    for index, parts in ((0, queries), (1, heads), (2, heads), (4, heads)):
        value = spec.input(index)
        if value is None:
            continue
        if len(value.shape) != 3:
            return Refusal(RefusalCause.RANK, f"{value.name} is {value.type}; expected 3 dimensions")
        last = value.shape[2]
        if last.is_dynamic or last.min % parts:
            return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}; expected {parts} heads in its rows")
    keys = spec.node.input_value(0).shape[2].min // queries
    shape = spec.node.input_value(1).shape
    if shape[2].min != heads * keys:
        return Refusal(RefusalCause.SHAPE, f"the key is {shape}; expected {heads} heads of {keys} elements")
    decay, beta = spec.input(4), spec.input(5)
    if decay is not None and decay.shape[2].min not in (heads, heads * keys):
        return Refusal(RefusalCause.SHAPE, f"decay is {decay.type}; expected rows of {heads} or {heads * keys}")
    if beta is not None and (len(beta.shape) != 3 or beta.shape[2] not in (1, heads)):
        return Refusal(RefusalCause.SHAPE, f"beta is {beta.type}; expected rows of 1 or {heads} elements")
    return None
