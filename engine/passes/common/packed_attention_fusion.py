"""`PackedAttentionFusion`: an attention reads queries, keys and values side by side, as one product gives them."""

from __future__ import annotations

from engine.ir import Node, Output
from engine.ops.internal import FusedAttention
from engine.ops.registry import attribute
from engine.passes.fusion import FusionPass, dims_of, operation
from engine.passes.pattern import Matcher, wrap_type

# What the internal operator has no attribute for, with the values that mean nothing special.
_PLAIN = {
    "softcap": 0.0,
    "softmax_precision": None,
    "qk_matmul_output_mode": 0,
    "left_window_size": -1,
    "right_window_size": -1,
}


class PackedAttentionFusion(FusionPass):
    """Turns attention over the three parts of a Split along the last axis into `engine.FusedAttention` of the whole.

    For devices with a kernel for it, so disabled unless a `PassConfig` enables it.
    """

    def __init__(self) -> None:
        super().__init__()
        attention = wrap_type(["Attention", "engine.FusedAttention"])

        def make(m: Matcher) -> Node | None:
            node = m.match_root
            if not _is_plain(node):
                return None
            heads, kv_heads = int(attribute(node, "q_num_heads") or 0), int(attribute(node, "kv_num_heads") or 0)
            packed = _whole([node.input_value(index) for index in range(3)], heads, kv_heads)
            if packed is None:
                return None
            return FusedAttention(
                packed,
                mask=node.input_value(3) if node.has_input(3) else None,
                rows=attribute(node, "rows") if node.domain else "attention",
                scale=_scale(node, packed, heads + 2 * kv_heads),
                is_causal=attribute(node, "is_causal"),
                q_num_heads=heads,
                kv_num_heads=kv_heads,
            )

        self.register_fusion(attention, make)


def _is_plain(node: Node) -> bool:
    if node.num_outputs != 1 or not all(node.has_input(index) for index in range(3)):
        return False
    if node.domain:
        return True
    has_cache = any(node.has_input(index) for index in (4, 5, 6))
    return not has_cache and all(attribute(node, name) in (value, None) for name, value in _PLAIN.items())


def _whole(parts: list[Output], heads: int, kv_heads: int) -> Output | None:
    """What was split into queries, keys and values of so many heads; None where they come from elsewhere."""
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


def _scale(node: Node, packed: Output, parts: int) -> float:
    given = attribute(node, "scale")
    if given is not None:
        return float(given)
    return float((packed.shape[2].get_length() // parts) ** -0.5)
