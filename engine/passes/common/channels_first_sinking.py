"""`ChannelsFirstSinking`: channels-last blocks between convolutions become channels-first."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops.internal import ChannelNormalization
from engine.ops.normalization import RowNormalizationSpec
from engine.passes.common.layout_rules import Perm
from engine.passes.common.transpose_sinking import TransposeSinking
from engine.passes.fusion import derived_constant, dims_of


class ChannelsFirstSinking(TransposeSinking):
    """`TransposeSinking` through LayerNormalization and products with constant weights over the channels.

    After a Transpose 0231, LayerNormalization becomes `engine.ChannelNormalization` and a product becomes a 1x1
    convolution, which removes all transposes of a ConvNeXt.
    """

    makes = frozenset({"Conv", "engine.ChannelNormalization"})

    def follows(self, node: Node, perm: Perm) -> bool:
        """Also True for a normalization or product over the last axis, if that was the second axis."""
        if node.domain or node.op_type not in ("LayerNormalization", "MatMul"):
            return super().follows(node, perm)
        rank, dims = len(perm), dims_of(node.input_value(0))
        if perm != (0, *range(2, rank), 1) or rank < 3 or dims is None or len(dims) != rank:
            return False
        if node.op_type == "MatMul":
            weights = node.input_value(1)
            return isinstance(weights.node, Constant) and len(weights.shape) == 2 and weights.element_type.is_real
        return RowNormalizationSpec.of(node).axis == rank - 1 and node.num_outputs == 1

    def moved(self, node: Node, inputs: list[Output | None], perm: Perm) -> Node:
        """The internal operator that computes `node` on channels-first data."""
        source = inputs[0]
        assert source is not None
        if node.op_type == "LayerNormalization" and not node.domain:
            bias = inputs[2] if len(inputs) > 2 else None
            scale = inputs[1]
            assert scale is not None
            spec = RowNormalizationSpec.of(node)
            return ChannelNormalization(source, scale, bias, epsilon=spec.epsilon, stash_type=spec.stash_type.onnx)
        if node.op_type == "MatMul" and not node.domain:
            table = node.input_value(1).node
            assert isinstance(table, Constant)
            shape = (*table.shape[::-1], *(1,) * (len(perm) - 2))
            kernel = derived_constant([table], shape, lambda data: np.ascontiguousarray(data.T).reshape(shape))
            return ops.Conv(source, kernel)
        return super().moved(node, inputs, perm)

    def inputs(self, node: Node) -> range:
        """Scale, bias and weights have no layout."""
        return range(1) if node.op_type in ("LayerNormalization", "MatMul") else super().inputs(node)
