"""`GemmFusion`: the product of two matrices and the sum with a bias become one `Gemm`."""

from __future__ import annotations

from engine import ops
from engine.ir import Node, bf16, f16, f32, f64
from engine.passes.fusion import FusionPass, dims_of, same_lengths
from engine.passes.pattern import Matcher, any_input, rank_equals, type_matches, wrap_type


class GemmFusion(FusionPass):
    """Turns Add(MatMul(a, b), c) of matrices into `Gemm`, if c broadcasts to the shape of the product."""

    makes = frozenset({"Gemm"})

    def __init__(self) -> None:
        super().__init__()
        is_matrix = rank_equals(2) & type_matches(f32, f16, bf16, f64)
        a, b, bias = any_input(is_matrix), any_input(is_matrix), any_input()
        matmul = wrap_type("MatMul", [a, b])
        root = wrap_type("Add", [matmul, bias])

        def make(m: Matcher) -> Node | None:
            values = m.pattern_value_map
            product, total, added = dims_of(values[matmul]), dims_of(values[root]), dims_of(values[bias])
            if product is None or total is None or added is None or len(added) > 2:
                return None
            if not same_lengths(product, total):
                return None
            return ops.Gemm(values[a], values[b], values[bias])

        self.register_fusion(root, make)
