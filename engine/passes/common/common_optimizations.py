"""`CommonOptimizations`: the sequence of ready passes that a plugin takes and trims through its `PassConfig`."""

from __future__ import annotations

from engine.ir import Model
from engine.passes.base import MatcherPass, Pass
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import AttentionFusion, RelaxedAttentionFusion
from engine.passes.common.attention_heads_fusion import AttentionHeadsFusion
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_subexpression import CommonSubexpressionSharing
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.conv_batch_norm_fusion import ConvBatchNormFusion
from engine.passes.common.conv_bias_fusion import ConvBiasFusion, ConvMultiplyFusion
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.decompositions import BatchNormalizationDecomposition, SwishDecomposition
from engine.passes.common.divide_to_multiply import DivideToMultiply
from engine.passes.common.flattened_transpose import FlattenedTransposeFusion
from engine.passes.common.gelu_fusion import GeluFusion, GeluTanhFusion
from engine.passes.common.gemm_fusion import GemmFusion
from engine.passes.common.group_normalization_fusion import GroupNormalizationFusion
from engine.passes.common.hard_swish_fusion import HardSwishFusion
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.layer_normalization_fusion import LayerNormalizationFusion
from engine.passes.common.mask_simplification import MaskSimplification
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.mish_fusion import MishFusion
from engine.passes.common.pad_conv_fusion import PadConvFusion
from engine.passes.common.qdq_propagation import DequantizeSinking, QuantizeHoisting, QuantizePairElimination
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.passes.common.reshape_merge import ReshapeMerge
from engine.passes.common.residual_fusion import ResidualFusion
from engine.passes.common.rms_normalization_fusion import RMSNormalizationFusion
from engine.passes.common.rotary_embedding_fusion import RotaryEmbeddingFusion
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.common.swish_fusion import SwishFusion
from engine.passes.common.transpose_merge import TransposeMerge, TransposeToReshape
from engine.passes.common.transpose_sinking import TransposeSinking
from engine.passes.config import PassConfig
from engine.passes.manager import Manager
from engine.passes.rewrite import BackwardGraphRewrite, GraphRewrite

_MOST_ROUNDS = 8


class CommonOptimizations(Pass):
    """Folds what is known, recognises what exporters spell out, and joins what belongs together; results stay.

    A plugin registers it with its manager and trims it by class: `config.disable(AttentionFusion)`. Some passes run
    only where they are enabled: those that may change a result (`DivideToMultiply`, `RelaxedAttentionFusion`),
    decompositions, and those that make internal operators, for which a device needs kernels (`MatMulBiasFusion`,
    `ActivationFusion`, `ResidualFusion`, `ChannelsFirstSinking`).

    Runs the sequence until nothing changes, so that a second run finds nothing to do.
    """

    def __init__(self) -> None:
        self._stages: list[Manager] = []
        self.set_pass_config(PassConfig())

    @property
    def passes(self) -> list[Pass]:
        """The passes, in order; matchers that share a traversal are in one rewrite."""
        return [item for stage in self._stages for item in stage.passes]

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline: its switches decide here too."""
        self.config = config
        if not self._stages:
            self._stages = [_pipeline(config), _last_pipeline(config)]
        for stage in self._stages:
            stage.set_pass_config(config)

    def run_on_model(self, model: Model) -> bool:
        """Run the sequence until nothing changes; then what gives internal operators, which hide patterns."""
        changed = False
        for stage in self._stages:
            for _ in range(_MOST_ROUNDS):
                if not stage.run_passes(model):
                    break
                changed = True
        return changed


def _pipeline(config: PassConfig) -> Manager:
    """The passes that leave operators of ONNX."""
    manager = Manager(config, label="CommonOptimizations")
    for item in (ShapeSimplification, ConstantFolding):
        manager.register_pass(item())
    manager.register_pass(_forward("Simplify", IdentityElimination, MaskSimplification, TransposeMerge, ReshapeMerge))
    manager.register_pass(CommonSubexpressionSharing())
    manager.register_pass(DeadCodeElimination())
    manager.register_pass(_forward("Quantization", DequantizeSinking, QuantizeHoisting, QuantizePairElimination))
    convolutions = _forward("Convolutions", PadConvFusion, ConvBatchNormFusion, ConvMultiplyFusion, ConvBiasFusion)
    manager.register_pass(convolutions)
    manager.register_pass(_recognitions())
    manager.register_pass(_forward("Layout", FlattenedTransposeFusion, TransposeMerge, TransposeToReshape, ReshapeMerge))
    # The larger forms first: what an attention reads must not have been joined with anything else.
    manager.register_pass(RotaryEmbeddingFusion())
    manager.register_pass(RelaxedAttentionFusion(), enabled=False)
    manager.register_pass(AttentionFusion())
    manager.register_pass(AttentionHeadsFusion())
    manager.register_pass(QKVProjectionFusion())
    manager.register_pass(GemmFusion())
    manager.register_pass(TransposeSinking())
    for decomposition in (DivideToMultiply, BatchNormalizationDecomposition, SwishDecomposition):
        manager.register_pass(decomposition(), enabled=False)
    return manager


def _last_pipeline(config: PassConfig) -> Manager:
    """The passes that make internal operators; none of them runs by default."""
    manager = Manager(config, label="CommonOptimizations.internal")
    manager.register_pass(ChannelsFirstSinking(), enabled=False)
    manager.register_pass(ConvBiasFusion())
    for item in (MatMulBiasFusion, ResidualFusion, ActivationFusion):
        manager.register_pass(item(), enabled=False)
    return manager


def _recognitions() -> GraphRewrite:
    """What exporters spell out, from the results up, so that a form with a bias is met before the one without."""
    kinds: list[type[MatcherPass]] = [
        LayerNormalizationFusion,
        RMSNormalizationFusion,
        GroupNormalizationFusion,
        GeluFusion,
        GeluTanhFusion,
        HardSwishFusion,
        MishFusion,
    ]
    rewrite = BackwardGraphRewrite([kind() for kind in kinds], name="Recognitions")
    rewrite.add_matcher(SwishFusion())
    return rewrite


def _forward(name: str, *kinds: type[MatcherPass]) -> GraphRewrite:
    return GraphRewrite([kind() for kind in kinds], name=name)
