"""`MatMulBiasFusion`: a matrix product and the bias after it become one internal operator."""

from __future__ import annotations

from engine.ir import Node
from engine.passes.common.epilogues import with_epilogue
from engine.passes.fusion import FusionPass, as_vector, dims_of
from engine.passes.pattern import Matcher, wrap_const, wrap_type


class MatMulBiasFusion(FusionPass):
    """Turns Add(MatMul(a, b), c) with a constant c of one value per column of b into `engine.FusedMatMul`.

    See also `GemmFusion`.
    """

    makes = frozenset({"engine.FusedMatMul"})

    def __init__(self) -> None:
        super().__init__()
        matmul, bias = wrap_type(["MatMul", "engine.FusedMatMul"]), wrap_const()

        def make(m: Matcher) -> Node | None:
            values = m.pattern_value_map
            dims, right = dims_of(values[matmul]), dims_of(values[matmul].node.input_value(1))
            if not dims or right is None or len(right) < 2:
                return None  # if b is a vector, the last dimension of the product is the rows of a
            vector = as_vector(values[bias], dims[-1:])
            return None if vector is None else with_epilogue(values[matmul].node, bias=vector)

        self.register_fusion(wrap_type("Add", [matmul, bias]), make)
