"""`ResidualFusion`: a convolution or matrix product and the residual added to it become one internal operator."""

from __future__ import annotations

from engine.passes.common.epilogues import FINISHED, fits_as_residual, with_epilogue
from engine.passes.fusion import replace_by
from engine.passes.pattern import Matcher, any_input, wrap_type
from engine.passes.rewrite import MatcherPass


class ResidualFusion(MatcherPass):
    """Fuses the addition of a tensor of the same shape into `engine.FusedConv`, `FusedMatMul` or `CompressedMatMul`.

    If both operands are candidates, the sum is fused into the first that nothing else reads.
    """

    makes = frozenset({"engine.FusedConv", "engine.FusedMatMul"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(
            Matcher(wrap_type(["Add", "Sum"], [any_input(), any_input()]), "ResidualFusion"), self._replace
        )

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        for index in (0, 1):
            source, other = node.input_value(index), node.input_value(1 - index)
            if source.node.op_type not in FINISHED or source.num_consumers != 1:
                continue
            if not fits_as_residual(other, source):
                continue
            fused = with_epilogue(source.node, residual=other)
            if fused is not None and replace_by(node, [source.node, node], [fused]):
                return True
        return False
