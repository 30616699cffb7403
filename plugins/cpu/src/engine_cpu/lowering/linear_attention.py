"""LinearAttention: a state of each head, updated token by token."""

from __future__ import annotations

import math

from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops.linear_attention import CORRECTING, DECAYING, LinearAttentionSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("LinearAttention", spec=LinearAttentionSpec)
class LinearAttentionLowering(OpLowering[LinearAttentionSpec]):
    """All update rules, with groups of queries, in f32."""

    def check(self, spec: LinearAttentionSpec) -> Refusal | None:
        return first_refusal(check_f32(spec.node), _check_rule(spec), _check_ranks(spec))

    def lower(self, spec: LinearAttentionSpec, b: SegmentBuilder) -> None:
        node = spec.node
        heads, queries = spec.kv_num_heads, spec.q_num_heads
        query, key, value = (node.input_value(index) for index in range(3))
        batch, tokens, _ = b.shape(query)
        keys, values = b.shape(query)[2] // queries, b.shape(value)[2] // heads
        past, decay, beta = (spec.input(index) for index in (3, 4, 5))
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
            scale=1 / math.sqrt(keys) if spec.scale is None else spec.scale,
        )


def _check_rule(spec: LinearAttentionSpec) -> Refusal | None:
    rule = spec.update_rule
    needed = (rule in DECAYING, rule in CORRECTING)
    if (spec.input(4) is not None, spec.input(5) is not None) != needed:
        return Refusal(RefusalCause.ATTRIBUTE, f"update_rule {rule!r} does not fit the inputs decay and beta")
    return None


def _check_ranks(spec: LinearAttentionSpec) -> Refusal | None:
    """Heads divide the last dimensions, which must be known."""
    heads, queries = spec.kv_num_heads, spec.q_num_heads
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
