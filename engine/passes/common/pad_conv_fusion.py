"""`PadConvFusion`: zero padding before a convolution is folded into its `pads`."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node
from engine.ops.conv import ConvSpec
from engine.passes.pattern import Matcher, attrs_match, consumers_count, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node


class PadConvFusion(MatcherPass):
    """Moves a constant zero Pad of spatial dimensions into the `pads` of the Conv that is its only consumer."""

    def __init__(self) -> None:
        super().__init__()
        pad = wrap_type("Pad", predicate=consumers_count(1) & attrs_match(mode="constant"))
        conv = wrap_type("Conv", predicate=attrs_match(auto_pad="NOTSET"))
        self._inner = Matcher(pad, "Pad")
        self.register_matcher(Matcher(conv, "PadConvFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        padding = node.input_value(0).node
        if not self._inner.match(node.input_value(0)) or self.transformation_callback(node):
            return False
        pads = _spatial_pads(padding, node)
        if pads is None:
            return False
        inputs = [padding.input_value(0), *node.input_values[1:]]
        fused = ops.create("Conv", inputs, {**node.attributes, "pads": pads})
        fused.friendly_name = node.friendly_name
        copy_runtime_info([padding, node], fused)
        replace_node(node, fused)
        return True


def _spatial_pads(pad: Node, conv: Node) -> tuple[int, ...] | None:
    """The combined padding; None if the Pad does anything but add zeros to spatial dimensions."""
    amounts, shape = pad.input_value(1).node, pad.input_value(0).shape
    if not isinstance(amounts, Constant) or shape.rank.is_dynamic or pad.has_input(3):
        return None
    if pad.has_input(2):
        value = pad.input_value(2).node
        if not isinstance(value, Constant) or np.any(value.data != 0):
            return None
    rank = len(shape)
    begins, ends = amounts.data[:rank], amounts.data[rank:]
    if begins[:2].any() or ends[:2].any() or (amounts.data < 0).any():
        return None
    own = ConvSpec.of(conv).pads
    assert own is not None
    return tuple(int(a + b) for a, b in zip([*begins[2:], *ends[2:]], own, strict=True))
