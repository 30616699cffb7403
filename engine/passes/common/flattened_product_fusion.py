"""`FlattenedProductFusion`: a matrix product between reshapes that flatten its rows becomes one internal operator."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Dimension, Node
from engine.ops.internal import INTERNAL_DOMAIN
from engine.passes.common.epilogues import PRODUCTS, with_epilogue
from engine.passes.fusion import FusionPass, dims_of, same_length
from engine.passes.pattern import Matcher, any_input, wrap_type


class FlattenedProductFusion(FusionPass):
    """Turns Reshape(Gemm(Reshape(x), w, b)) into `engine.FusedMatMul` of `x`, where the reshapes keep the columns.

    Exporters write the linear layers of GPT-2 this way. Without the reshapes, a following residual and activation can
    be fused into the product.
    """

    makes = frozenset({"engine.FusedMatMul"})

    def __init__(self) -> None:
        super().__init__()
        self._product = wrap_type(PRODUCTS)
        self._root = wrap_type("Reshape", [self._product, any_input()])
        self.register_fusion(self._root, self._make)

    def _make(self, m: Matcher) -> Node | None:
        values = m.pattern_value_map
        node = values[self._product].node
        flat = node.input_value(0)
        if flat.node.op_type != "Reshape" or flat.node.domain:
            return None
        x = flat.node.input_value(0)
        rows, source, target = dims_of(flat), dims_of(x), dims_of(values[self._root])
        columns = dims_of(values[self._product])
        if not rows or not source or not target or not columns or len(rows) != 2:
            return None
        if not same_length(rows[-1], source[-1]) or not same_length(columns[-1], target[-1]):
            return None
        if not _same_rows(source, target) or len(dims_of(node.input_value(1)) or ()) != 2:
            return None
        fused = node if node.domain == INTERNAL_DOMAIN else with_epilogue(node)
        if fused is None or fused.has_input(3):
            return None
        return fused.clone_with_new_inputs([x, *fused.input_values[1:]])


def _same_rows(source: Sequence[Dimension], target: Sequence[Dimension]) -> bool:
    """True if all dimensions but the last provably agree, given that their products do.

    A single unknown dimension follows from the product, unless another one may be zero.
    """
    if len(source) != len(target):
        return False
    pairs = list(zip(source[:-1], target[:-1], strict=True))
    unknown = [pair for pair in pairs if not same_length(*pair)]
    if not unknown:
        return True
    known = [length for pair in pairs if pair not in unknown for length in pair]
    return (
        len(unknown) == 1
        and all(length.is_static and length != 0 for length in (*known, source[-1], target[-1]))
        and not all(length.is_static for length in unknown[0])
    )
