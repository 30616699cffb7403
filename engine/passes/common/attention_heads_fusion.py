"""`AttentionHeadsFusion`: splitting and joining heads around an attention becomes part of it."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, Node, Output
from engine.ops.attention import AttentionSpec, default_scale
from engine.ops.internal import FusedAttentionSpec
from engine.passes.common.transpose_merge import permutation
from engine.passes.fusion import (
    FusionPass,
    dims_of,
    float_attribute,
    operation,
    replace_by,
    reshape_target,
    same_length,
    same_lengths,
    scalar,
)
from engine.passes.pattern import Matcher, any_input, attrs_match, wrap_type
from engine.startup import dataclass

_HEADS_SECOND = [0, 2, 1, 3]


class AttentionHeadsFusion(FusionPass):
    """Makes an Attention read and return [B, S, H * D] if transposes and Reshapes around it split and join the heads.

    All three inputs must come from Transpose 0213 of [B, S, H, D], queries and keys optionally through a
    RotaryEmbedding, and the output must go through Transpose 0213 into a Reshape. A positive factor of queries or keys
    is absorbed into the scale.
    """

    def __init__(self) -> None:
        super().__init__()
        self._attention = wrap_type(["Attention", "engine.FusedAttention"])
        turned = wrap_type("Transpose", [self._attention], attrs_match(perm=(0, 2, 1, 3)))
        root = wrap_type("Reshape", [turned, any_input()])
        self.register_matcher(Matcher(root, self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.pattern_value_map[self._attention].node
        if self.transformation_callback(m.match_root) or not _is_plain(node):
            return False
        split = _JoinedHeads()
        sources = [split.joined(node.input_value(index), has_scale=index < 2) for index in range(3)]
        if any(source is None for source in sources):
            return False
        mask = node.input_value(3) if node.has_input(3) else None
        heads: dict[str, Any] = {"q_num_heads": split.counts[0], "kv_num_heads": split.counts[1]}
        if split.scale != 1.0:
            number = float_attribute(split.scale * _scale(node), node.input_value(0))
            if number is None or not 0 < number < math.inf:
                return False
            heads["scale"] = number
        fused = ops.create(node.op_type, [*sources, mask], {**node.attributes, **heads}, domain=node.domain)
        made = [*split.made, fused]
        result, own = dims_of(m.match_root.output(0)), dims_of(fused.output(0))
        if result is None or own is None:
            return False
        if not same_lengths(result, own):
            target = reshape_target(result, own)
            if target is None:
                return False
            made.append(ops.Reshape(fused, Constant(np.array(target, np.int64))))
        return replace_by(m.match_root, [*m.matched_nodes, *split.absorbed], made)


def _is_plain(node: Node) -> bool:
    """True for [B, H, S, D] inputs, no cache, and one output that is read once."""
    no_cache = not any(node.has_input(index) for index in (4, 5, 6))
    single = node.num_outputs == 1 and node.output(0).num_consumers == 1
    return no_cache and single and len(dims_of(node.input_value(0)) or ()) == 4


def _scale(node: Node) -> float:
    given = FusedAttentionSpec.of(node).scale if node.domain else AttentionSpec.of(node).scale
    if given is not None:
        return given
    size = dims_of(node.input_value(0))
    return default_scale(size[3].get_length()) if size and size[3].is_static else 0.0


@dataclass(slots=True)
class _JoinedHeads:
    """Finds [B, S, H * D] behind the inputs of an attention."""

    counts: list[int] = field(default_factory=list)
    absorbed: list[Node] = field(default_factory=list)
    made: list[Node] = field(default_factory=list)
    scale: float = 1.0

    def joined(self, value: Output, *, has_scale: bool) -> Output | None:
        """`value`, [B, H, S, D], as [B, S, H * D], unscaled if `has_scale`; None if its source does not match."""
        rotary = operation(value, "RotaryEmbedding")
        split = value if rotary is None else rotary.input_value(0)
        turned = operation(split, "Transpose")
        if turned is None or permutation(turned) != _HEADS_SECOND:
            return None
        shaped = operation(turned.input_value(0), "Reshape", "Unsqueeze")
        dims = dims_of(turned.input_value(0))
        if shaped is None or dims is None or dims[2].is_dynamic or dims[3].is_dynamic:
            return None
        count, width = dims[2].get_length(), dims[3].get_length()
        flat = self._without_scale(shaped.input_value(0)) if has_scale and rotary is None else shaped.input_value(0)
        source = self._as_rows(flat, [dims[0], dims[1], Dimension(count * width)])
        if source is None:
            return None
        self.counts.append(count)
        self.absorbed += [turned, shaped]
        if rotary is None:
            return source
        tables = rotary.input_values[1:]
        turned_rows = ops.RotaryEmbedding(source, *tables, **{**rotary.attributes, "num_heads": count})
        self.absorbed.append(rotary)
        self.made.append(turned_rows)
        return turned_rows.output(0)

    def _without_scale(self, value: Output) -> Output:
        scaled = operation(value, "Mul")
        if scaled is None or value.num_consumers != 1:
            return value
        for index in range(2):
            number, source = scalar(scaled.input_value(index)), scaled.input_value(1 - index)
            if number is not None and number > 0 and dims_of(source) == dims_of(value):
                self.scale *= number
                self.absorbed.append(scaled)
                return source
        return value

    def _as_rows(self, source: Output, wanted: list[Dimension]) -> Output | None:
        own = dims_of(source)
        if own is None:
            return None
        if len(own) == 3 and all(map(same_length, own, wanted)):
            return source
        target = reshape_target(wanted, own)
        if target is None:
            return None
        rows = ops.Reshape(source, Constant(np.array(target, np.int64)))
        self.made.append(rows)
        return rows.output(0)
