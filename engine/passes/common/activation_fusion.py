"""`ActivationFusion`: a convolution or matrix product and the activation after it become one internal operator."""

from __future__ import annotations

from engine.ops.internal import ACTIVATIONS, activation_of
from engine.passes.common.epilogues import FINISHED, with_epilogue
from engine.passes.fusion import replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass


class ActivationFusion(MatcherPass):
    """Fuses the activation that is the only consumer of a convolution or matrix product into it.

    The result is `engine.FusedConv`, `engine.FusedMatMul` or `engine.CompressedMatMul`; the activations are listed in
    `engine.ops.internal.ACTIVATIONS`.
    """

    makes = frozenset({"engine.FusedConv", "engine.FusedMatMul"})

    def __init__(self) -> None:
        super().__init__()

        def callback(m: Matcher) -> bool:
            node = m.match_root
            source = node.input_value(0)
            if source.node.op_type not in FINISHED or source.num_consumers != 1 or self.transformation_callback(node):
                return False
            activation = activation_of(node)
            fused = None if activation is None else with_epilogue(source.node, activation=activation)
            return fused is not None and replace_by(node, [source.node, node], [fused])

        # A Clip has one to three inputs, so the callback checks the producer.
        root = wrap_type([name for name in ACTIVATIONS if name != "GeluTanh"])
        self.register_matcher(Matcher(root, "ActivationFusion"), callback)
