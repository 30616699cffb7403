"""`CommonOptimizations`: the sequence of ready-made passes, which a plugin adjusts through its `PassConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from engine.passes.base import Pass
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_bias_merging import AttentionBiasMerging, WindowMaskSinking
from engine.passes.common.attention_fusion import AttentionFusion, InternalAttentionFusion, RelaxedAttentionFusion
from engine.passes.common.attention_heads_fusion import AttentionHeadsFusion
from engine.passes.common.branch_elimination import BranchElimination
from engine.passes.common.byte_table_fusion import ByteTableFusion
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_subexpression import CommonSubexpressionSharing
from engine.passes.common.compressed_gather_fusion import CompressedGatherFusion
from engine.passes.common.compressed_weights_fusion import CompressedWeightsFusion
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.conv_batch_norm_fusion import ConvBatchNormFusion
from engine.passes.common.conv_bias_fusion import ConvBiasFusion, ConvMultiplyFusion
from engine.passes.common.conv_input_fusion import ConvInputFusion
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.decompositions import (
    BatchNormalizationDecomposition,
    MeanVarianceNormalizationDecomposition,
    SwishDecomposition,
)
from engine.passes.common.divide_to_multiply import DivideToMultiply
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.expand_elimination import ExpandElimination
from engine.passes.common.expression_decomposition import ExpressionDecomposition
from engine.passes.common.flattened_product_fusion import FlattenedProductFusion
from engine.passes.common.flattened_transpose import FlattenedTransposeFusion
from engine.passes.common.function_decomposition import FunctionDecomposition
from engine.passes.common.gelu_fusion import GeluFusion, GeluTanhFusion
from engine.passes.common.gemm_fusion import GemmFusion
from engine.passes.common.global_pool_fusion import GlobalPoolFusion
from engine.passes.common.group_normalization_fusion import GroupNormalizationFusion
from engine.passes.common.grouped_query_fusion import GroupedQueryFusion
from engine.passes.common.hard_swish_fusion import HardSwishFusion
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.index_grid_elimination import IndexGridElimination
from engine.passes.common.integer_product_decomposition import IntegerProductDecomposition
from engine.passes.common.layer_normalization_fusion import LayerNormalizationFusion
from engine.passes.common.length_sharing import LengthSharing
from engine.passes.common.linear_operators import LinearConcatSplitting, LinearHoisting, LinearMerging, LinearSinking
from engine.passes.common.mask_simplification import MaskSimplification
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.mish_fusion import MishFusion
from engine.passes.common.operator_decomposition import OperatorDecomposition
from engine.passes.common.packed_attention_fusion import PackedAttentionFusion
from engine.passes.common.pad_conv_fusion import PadConvFusion
from engine.passes.common.position_decompositions import RotaryPositionsDecomposition, TensorScatterDecomposition
from engine.passes.common.qdq_propagation import DequantizeSinking, QuantizeHoisting, QuantizePairElimination
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.passes.common.qoperator_decomposition import QOperatorDecomposition
from engine.passes.common.quantization_decomposition import (
    DequantizedConstantFolding,
    DynamicQuantizationDecomposition,
    QuantizationDecomposition,
)
from engine.passes.common.quantized_fusion import QuantizedFusion
from engine.passes.common.quantized_maps_fusion import QuantizedMapsFusion
from engine.passes.common.quantized_product_fusion import QuantizedProductFusion
from engine.passes.common.quantized_softmax_fusion import QuantizedSoftmaxFusion
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

_MAX_ROUNDS = 8


class CommonOptimizations(Manager):
    """Folds constants, recognises operators that exporters decompose, and fuses operations, preserving results.

    A plugin registers it with its manager. `LoweringTable.configure` then runs the passes that make what the device has
    kernels for, internal operators included, and decomposes the nodes that it refuses. Exceptions are by class:
    `config.disable(AttentionFusion)`. Passes whose class has `by_default = False` run only if they are enabled.

    Each of its two parts runs until nothing changes, so a second run changes nothing.
    """

    def __init__(self, config: PassConfig | None = None) -> None:
        super().__init__(config)
        self.register_pass(_Rounds("CanonicalOptimizations", _canonical()))
        # Internal operators hide patterns, so they are made after all others.
        self.register_pass(_Rounds("InternalOptimizations", _INTERNAL))


class _Rounds(Manager):
    """A manager that repeats its passes until they change nothing."""

    def __init__(self, name: str, passes: Iterable[Pass | type[Pass]]) -> None:
        super().__init__(name=name)
        for item in passes:
            self.register_pass(item, enabled=None if item.by_default else False)

    def _sequence(self, passes: Sequence[Pass]) -> Iterator[Pass]:
        """In turns, until all of them in a row changed nothing."""
        unchanged = 0
        for item in [*passes] * _MAX_ROUNDS:
            yield item
            unchanged = 0 if self.records[-1].changed else unchanged + 1
            if unchanged == len(passes):
                return


# A new pass gets a line in one of the two sequences, or in one of the rewrites, which run several in one traversal.
def _canonical() -> list[Pass | type[Pass]]:
    """The passes that produce only ONNX operators, in order."""
    return [
        ShapeSimplification,
        ConstantFolding,
        BranchElimination,
        # Operators that exporters decompose.
        EinsumDecomposition,
        FunctionDecomposition,
        ExpressionDecomposition,
        OperatorDecomposition,
        MeanVarianceNormalizationDecomposition,
        TensorScatterDecomposition,
        GraphRewrite(
            [
                IdentityElimination,
                ExpandElimination,
                MaskSimplification,
                IndexGridElimination,
                TransposeMerge,
                ReshapeMerge,
            ],
            "Simplifications",
        ),
        LengthSharing,
        CommonSubexpressionSharing,
        DeadCodeElimination,
        QOperatorDecomposition,
        GraphRewrite([DequantizeSinking, QuantizeHoisting, QuantizePairElimination], "Quantization"),
        GraphRewrite(
            [PadConvFusion, ConvInputFusion, ConvBatchNormFusion, ConvMultiplyFusion, ConvBiasFusion], "Convolutions"
        ),
        # From the results up, so that a form with a bias is matched before the one without.
        BackwardGraphRewrite(
            [
                LayerNormalizationFusion,
                RMSNormalizationFusion,
                GroupNormalizationFusion,
                GlobalPoolFusion,
                GeluFusion,
                GeluTanhFusion,
                HardSwishFusion,
                MishFusion,
                SwishFusion,
            ],
            "Recognitions",
        ),
        GraphRewrite([FlattenedTransposeFusion, TransposeMerge, TransposeToReshape, ReshapeMerge], "Layout"),
        BackwardGraphRewrite([WindowMaskSinking, AttentionBiasMerging], "AttentionBiases"),
        # The inputs of an attention must not have been fused with anything else, so the order matters.
        RotaryEmbeddingFusion,
        RelaxedAttentionFusion,
        AttentionFusion,
        InternalAttentionFusion,
        GroupedQueryFusion,
        AttentionHeadsFusion,
        QKVProjectionFusion,
        RotaryPositionsDecomposition,
        GemmFusion,
        ChannelsFirstSinking,
        TransposeSinking,
        # From the results up, so that a product with a bias is matched before the one without.
        BackwardGraphRewrite(
            [LinearConcatSplitting, LinearMerging, LinearHoisting, LinearSinking],
            "LinearOperators",
        ),
        DivideToMultiply,
        BatchNormalizationDecomposition,
        SwishDecomposition,
        DynamicQuantizationDecomposition,
        DequantizedConstantFolding,
    ]


_INTERNAL: Final[tuple[type[Pass], ...]] = (
    QuantizedProductFusion,  # a sum with a residual would hide the product
    PackedAttentionFusion,
    FlattenedProductFusion,
    MatMulBiasFusion,
    CompressedWeightsFusion,
    CompressedGatherFusion,
    ResidualFusion,
    ActivationFusion,
    ByteTableFusion,
    QuantizedFusion,
    QuantizedMapsFusion,
    QuantizedSoftmaxFusion,
    # The rest of the quantization.
    IntegerProductDecomposition,
    QuantizationDecomposition,
)
"""The passes that make internal operators, in order."""
