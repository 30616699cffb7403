"""`TransposedProductFusion`: a product reads a transposed second operand where it is."""

from __future__ import annotations

from engine import ops
from engine.ir import Constant, Node, Output, f32
from engine.ops.internal import FusedMatMul
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.spec import spec_of
from engine.passes import MatcherPass
from engine.passes.common.epilogues import PRODUCTS
from engine.passes.common.transpose_merge import permutation
from engine.passes.fusion import dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type


class TransposedProductFusion(MatcherPass):
    """Turns products with Transpose(b) into products that read b, if it exchanges the last two axes of b.

    Kernels read computed matrices in either order, so the copy is not needed, unless something else reads it. Lengths
    must be known: passes that recognise attention by them come first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type(PRODUCTS), "TransposedProductFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        turned = operation(node.input_value(1), "Transpose")
        if turned is None or turned.output(0).num_consumers != 1 or not _exchanges_last(turned):
            return False
        made = _with_transposed(node, turned.input_value(0))
        return made is not None and replace_by(node, [node, turned], [made])


def _exchanges_last(node: Node) -> bool:
    """Whether a Transpose of a computed f32 tensor of known lengths exchanges the last two axes only."""
    source = node.input_value(0)
    dims, order = dims_of(source), permutation(node)
    if dims is None or order is None or len(dims) < 2 or not all(dim.is_static for dim in dims):
        return False
    rank = len(dims)
    is_last = order == [*range(rank - 2), rank - 1, rank - 2]
    return is_last and source.element_type is f32 and not isinstance(source.node, Constant)


def _with_transposed(node: Node, b: Output) -> Node | None:
    """The product `node` with a second operand that is stored as the transposed one was; None if it already is."""
    spec = spec_of(node)
    if isinstance(spec, GemmSpec):
        if spec.transB:
            return None
        return ops.Gemm(
            node.input_value(0), b, spec.input(2), alpha=spec.alpha, beta=spec.beta, transA=int(spec.transA), transB=1
        )
    assert isinstance(spec, MatMulSpec)
    if spec.trans_b:
        return None
    return FusedMatMul(node.input_value(0), b, spec.input(2), spec.input(3), activation=spec.activation, trans_b=True)
