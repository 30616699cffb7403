"""`PackedAttentionFusion`: an attention reads queries, keys and values packed, as one product computes them."""

from __future__ import annotations

from engine.ir import Node, Output
from engine.ops.attention import AttentionSpec, default_scale
from engine.ops.internal import FusedAttention, FusedAttentionSpec
from engine.ops.registry import attribute
from engine.passes.fusion import FusionPass, dims_of, float_attribute, operation
from engine.passes.pattern import Matcher, wrap_type


class PackedAttentionFusion(FusionPass):
    """Turns attention over the three parts of a Split along the last axis into `engine.FusedAttention` of the whole."""

    makes = frozenset({"engine.FusedAttention"})

    def __init__(self) -> None:
        super().__init__()
        attention = wrap_type(["Attention", "engine.FusedAttention"])
        self.register_fusion(attention, self._make)

    def _make(self, m: Matcher) -> Node | None:
        node = m.match_root
        spec = FusedAttentionSpec.of(node) if node.domain else AttentionSpec.of(node)
        if not _is_plain(spec):
            return None
        heads, kv_heads = spec.q_num_heads or 0, spec.kv_num_heads or 0
        packed = _whole([node.input_value(index) for index in range(3)], heads, kv_heads)
        if packed is None:
            return None
        scale = spec.scale
        if scale is None:
            size = packed.shape[2].get_length() // (heads + 2 * kv_heads)
            scale = float_attribute(default_scale(size), packed)
            if scale is None:
                return None
        return FusedAttention(
            packed,
            mask=spec.mask,
            rows="attention" if isinstance(spec, AttentionSpec) else spec.rows,
            scale=scale,
            is_causal=int(spec.is_causal),
            q_num_heads=heads,
            kv_num_heads=kv_heads,
        )


def _is_plain(spec: AttentionSpec | FusedAttentionSpec) -> bool:
    """Whether the internal operator can express `spec`, whose inputs are separate."""
    if isinstance(spec, FusedAttentionSpec):
        return not spec.is_packed
    has_cache = any(spec.node.has_input(index) for index in (4, 5, 6))
    has_window = spec.left_window_size != -1 or spec.right_window_size != -1
    is_usual = not spec.softcap and spec.softmax_precision is None and not spec.qk_matmul_output_mode
    return spec.node.num_outputs == 1 and not has_cache and not has_window and is_usual


def _whole(parts: list[Output], heads: int, kv_heads: int) -> Output | None:
    """The value that is split into queries, keys and values with these head counts; None if there is none."""
    split = operation(parts[0], "Split")
    if split is None or split.num_outputs != 3 or not heads or not kv_heads:
        return None
    if any(part.node is not split or part.index != i or part.num_consumers != 1 for i, part in enumerate(parts)):
        return None
    whole = split.input_value(0)
    dims, widths = dims_of(whole), [dims_of(part) for part in parts]
    if dims is None or len(dims) != 3 or attribute(split, "axis") not in (2, -1):
        return None
    lengths = [width[2].get_length() if width is not None and width[2].is_static else 0 for width in widths]
    size = lengths[0] // heads
    return whole if size and lengths == [heads * size, kv_heads * size, kv_heads * size] else None
