"""`ExpertMatMulFusion`: products with matrices that are looked up by expert become one operator."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, f32, i32, i64
from engine.ops.gather import GatherSpec
from engine.ops.internal import ExpertMatMul
from engine.passes.fusion import operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_RANK: Final = 3


class ExpertMatMulFusion(MatcherPass):
    """Makes `engine.ExpertMatMul` of a MatMul of matrices from a Gather, [n, N, K], with columns, [n, K, 1].

    So do exporters write experts: the Gather copies a matrix for each token and each of its experts.
    """

    makes = frozenset({"engine.ExpertMatMul"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("MatMul"), "ExpertMatMulFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        found = None if self.transformation_callback(node) else _operands(node)
        if found is None:
            return False
        look_up, columns = found
        weights = look_up.input_value(0)
        _, length, width = weights.node.output(0).shape.get_shape()
        experts = ops.Unsqueeze(look_up.input_value(1), Constant(np.array([1])))
        # Columns as rows, and the results as columns: both keep the order of elements.
        rows = ops.Reshape(columns, Constant(np.array([0, 1, width])))
        product = ExpertMatMul(rows, experts, weights)
        made = ops.Reshape(product, Constant(np.array([0, length, 1])))
        return replace_by(node, [look_up, node], [experts, rows, product, made])


def _operands(node: Node) -> tuple[Node, Output] | None:
    """The Gather of a product's matrices, and the columns; None for other products."""
    look_up, columns = operation(node.input_value(0), "Gather"), node.input_value(1)
    if look_up is None or look_up.output(0).num_consumers != 1 or node.output(0).element_type is not f32:
        return None
    weights, indices = look_up.input_value(0), look_up.input_value(1)
    if not isinstance(weights.node, Constant) or len(weights.shape) != _RANK or 0 in weights.node.shape:
        return None
    if indices.element_type not in (i32, i64) or indices.shape.rank != 1 or GatherSpec.of(look_up).axis != 0:
        return None
    shape = columns.shape
    if shape.rank.is_dynamic or len(shape) != _RANK or shape[2] != 1 or shape[1] != weights.shape[2]:
        return None
    count, experts = shape[0], indices.shape[0]
    is_known = count.is_static or count.symbol is not None  # otherwise one column may be for all matrices
    return (look_up, columns) if is_known and count == experts else None
