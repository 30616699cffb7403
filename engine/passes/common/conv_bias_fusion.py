"""`ConvBiasFusion` and `ConvMultiplyFusion`: per-channel constants after a convolution are folded into it."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops.tensors import Array
from engine.passes.common.conv_batch_norm_fusion import scaled_fits, scaled_weights
from engine.passes.fusion import FusionPass, constant_data, dims_of
from engine.passes.pattern import Matcher, wrap_const, wrap_type

_KINDS = ["Conv", "ConvTranspose"]


class ConvBiasFusion(FusionPass):
    """Turns Add(Conv(x, w), c) with a constant c of one value per channel into the bias of the convolution."""

    def __init__(self) -> None:
        super().__init__()
        conv, addend = wrap_type(_KINDS), wrap_const()
        root = wrap_type("Add", [conv, addend])

        def make(m: Matcher) -> list[Node] | None:
            node = m.pattern_value_map[conv].node
            added = per_channel(m.pattern_value_map[addend], m.pattern_value_map[conv])
            bias = constant_data(node.input_value(2)) if node.has_input(2) else None
            if added is None or (node.has_input(2) and bias is None):
                return None
            total = added if bias is None else (bias.astype(np.float64) + added).astype(bias.dtype)
            return _with_parameters(node, node.input_value(1), Constant(total))

        self.register_fusion(root, make)


class ConvMultiplyFusion(FusionPass):
    """Turns Mul(Conv(x, w, b), c) of constants into scaled weights; c is a scalar or has one value per channel.

    The weights are computed in double precision and rounded once. None may overflow, or lose digits as denormal number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv, self._factor = wrap_type(_KINDS), wrap_const()
        root = wrap_type("Mul", [self._conv, self._factor])
        self.register_fusion(root, self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        node = m.pattern_value_map[self._conv].node
        weights = node.input_value(1).node
        scale = per_channel(m.pattern_value_map[self._factor], m.pattern_value_map[self._conv])
        bias = constant_data(node.input_value(2)) if node.has_input(2) else None
        if not isinstance(weights, Constant) or scale is None or (node.has_input(2) and bias is None):
            return None
        wide = scale.astype(np.float64)
        moved = None if bias is None else bias.astype(np.float64) * wide
        if not scaled_fits(node, weights, wide, moved):
            return None
        new = scaled_weights(node, weights, wide)
        shift = None if bias is None or moved is None else Constant(moved.astype(bias.dtype))
        return _with_parameters(node, new.output(0), shift)


def per_channel(value: Output, data: Output) -> Array | None:
    """A constant that broadcasts to `data` [N, C, ...] along channels, as [C]; None for any other value."""
    constant, dims = constant_data(value), dims_of(data)
    if constant is None or dims is None or len(dims) < 3 or dims[1].is_dynamic or constant.ndim > len(dims):
        return None
    if value.element_type is not data.element_type or not value.element_type.is_real:
        return None
    channels = dims[1].get_length()
    shape = (1,) * (len(dims) - constant.ndim) + constant.shape
    if shape[0] != 1 or shape[1] not in (1, channels) or any(length != 1 for length in shape[2:]):
        return None
    return np.ascontiguousarray(np.broadcast_to(constant.reshape(-1), (channels,)))


def _with_parameters(node: Node, weights: Output, bias: Constant | None) -> list[Node]:
    made = [] if bias is None else [bias]
    return [*made, ops.create(node.op_type, [node.input_value(0), weights, bias], node.attributes)]
