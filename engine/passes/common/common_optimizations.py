"""`CommonOptimizations`: the sequence of ready-made passes, which a plugin adjusts through its `PassConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from engine.ops.fused_activation import ACTIVATIONS
from engine.passes.base import Pass
from engine.passes.common.branch_elimination import BranchElimination
from engine.passes.common.common_subexpression import CommonSubexpressionSharing
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.expression_decomposition import ExpressionDecomposition
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.length_sharing import LengthSharing
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.config import PassConfig
from engine.passes.late import LatePass
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
        self.register_pass(_Rounds("InternalOptimizations", _internal()))


def named_passes(names: Iterable[str]) -> list[LatePass]:
    """New passes of those that it imports when they are needed, by their names, for other pipelines."""
    known: dict[str, LatePass] = {}
    for item in (*_canonical(), *_internal()):
        members = item.members if isinstance(item, GraphRewrite) else [item]
        known.update({each.name: each for each in members if isinstance(each, LatePass)})
    return [known[name] for name in names]


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
        _late(
            "einsum_decomposition",
            "EinsumDecomposition",
            "Einsum",
            makes=["MatMul", "Mul", "ReduceSum", "Reshape", "Transpose"],
            removes=["Einsum"],
        ),
        _decomposition("function_decomposition", "FunctionDecomposition", *_FUNCTIONS),
        ExpressionDecomposition,
        _decomposition("operator_decomposition", "OperatorDecomposition", *_OPERATORS),
        _decomposition(
            "decompositions",
            "MeanVarianceNormalizationDecomposition",
            "MeanVarianceNormalization",
            makes=["Add", "Cast", "Div", "Mul", "ReduceMean", "Sqrt", "Sub"],
        ),
        _decomposition("position_decompositions", "TensorScatterDecomposition", "TensorScatter", makes=["ScatterND"]),
        GraphRewrite(
            [
                IdentityElimination,
                _late("expand_elimination", "ExpandElimination", "Expand"),
                _late("mask_simplification", "MaskSimplification", "Add|And|Or|Where"),
                _late("index_grid_elimination", "IndexGridElimination", "Gather|GatherND", makes=["Expand", "Reshape"]),
                _late("row_scatter_fusion", "RowScatterFusion", "ScatterElements", makes=["Reshape", "ScatterND"]),
                _late("transpose_merge", "TransposeMerge", "Transpose"),
                _late("reshape_merge", "ReshapeMerge", "Flatten|Reshape|Squeeze|Unsqueeze", makes=["Reshape"]),
            ],
            "Simplifications",
        ),
        LengthSharing,
        CommonSubexpressionSharing,
        DeadCodeElimination,
        _late(
            "qoperator_decomposition",
            "QOperatorDecomposition",
            "QLinearConv|QLinearMatMul|Resize",
            by_default=False,
        ),
        GraphRewrite(
            [
                _late("qdq_propagation", "DequantizeSinking", "DequantizeLinear", makes=["Clip"]),
                _late("qdq_propagation", "QuantizeHoisting", "QuantizeLinear"),
                _late("qdq_propagation", "QuantizePairElimination", "QuantizeLinear"),
            ],
            "Quantization",
        ),
        GraphRewrite(
            [
                _late("pad_conv_fusion", "PadConvFusion", "Conv", "Pad"),
                _late("conv_input_fusion", "ConvInputFusion", "Conv", makes=["Add"]),
                _late("conv_batch_norm_fusion", "ConvBatchNormFusion", "BatchNormalization", "Conv|ConvTranspose"),
                _late("conv_bias_fusion", "ConvMultiplyFusion", "Mul", "Conv|ConvTranspose"),
                _late("conv_bias_fusion", "ConvBiasFusion", "Add", "Conv|ConvTranspose"),
            ],
            "Convolutions",
        ),
        # From the results up, so that a form with a bias is matched before the one without.
        BackwardGraphRewrite(
            [
                _late(
                    "layer_normalization_fusion", "LayerNormalizationFusion", "ReduceMean", makes=["LayerNormalization"]
                ),
                _late("rms_normalization_fusion", "RMSNormalizationFusion", "ReduceMean", makes=["RMSNormalization"]),
                _late(
                    "group_normalization_fusion",
                    "GroupNormalizationFusion",
                    "InstanceNormalization",
                    makes=["GroupNormalization"],
                ),
                _late(
                    "global_pool_fusion",
                    "GlobalPoolFusion",
                    "AveragePool|MaxPool",
                    makes=["GlobalAveragePool", "GlobalMaxPool"],
                ),
                _late("gelu_fusion", "GeluFusion", "Erf", makes=["Gelu"]),
                _late("gelu_fusion", "GeluTanhFusion", "Tanh", makes=["Gelu"]),
                _late("hard_swish_fusion", "HardSwishFusion", "Clip|HardSigmoid", makes=["HardSwish"]),
                _late("mish_fusion", "MishFusion", "Softplus", makes=["Mish"]),
                _late("swish_fusion", "SwishFusion", "Sigmoid", makes=["Swish"]),
            ],
            "Recognitions",
        ),
        GraphRewrite(
            [
                _late("flattened_transpose", "FlattenedTransposeFusion", "Reshape", "Transpose"),
                _late("transpose_merge", "TransposeMerge", "Transpose"),
                _late("transpose_merge", "TransposeToReshape", "Transpose", makes=["Reshape"]),
                _late("reshape_merge", "ReshapeMerge", "Flatten|Reshape|Squeeze|Unsqueeze", makes=["Reshape"]),
            ],
            "Layout",
        ),
        BackwardGraphRewrite(
            [
                _late("attention_bias_merging", "WindowMaskSinking", "Reshape", "Add"),
                _late("attention_bias_merging", "AttentionBiasMerging", "Softmax", "Add"),
            ],
            "AttentionBiases",
        ),
        # The inputs of an attention must not have been fused with anything else, so the order matters.
        _late(
            "rotary_embedding_fusion",
            "RotaryEmbeddingFusion",
            "Neg",
            "Concat",
            makes=["Expand", "RotaryEmbedding", "Squeeze"],
        ),
        _late("attention_fusion", "RelaxedAttentionFusion", "Softmax", "MatMul", makes=["Attention"], by_default=False),
        _late("attention_fusion", "AttentionFusion", "Softmax", "MatMul", makes=["Attention"]),
        _late("attention_fusion", "InternalAttentionFusion", "Softmax", "MatMul", makes=["engine.FusedAttention"]),
        _late("grouped_query_fusion", "GroupedQueryFusion", _ATTENTION),
        _late("attention_heads_fusion", "AttentionHeadsFusion", "Reshape", _ATTENTION),
        _late("qkv_projection_fusion", "QKVProjectionFusion", "MatMul", makes=["Split"]),
        _decomposition("position_decompositions", "RotaryPositionsDecomposition", "RotaryEmbedding", makes=["Gather"]),
        _late("gemm_fusion", "GemmFusion", "Add", "MatMul", makes=["Gemm"]),
        _late(
            "channels_first_sinking",
            "ChannelsFirstSinking",
            "Transpose",
            makes=["Conv", "engine.ChannelNormalization"],
        ),
        _late("transpose_sinking", "TransposeSinking", "Transpose"),
        # From the results up, so that a product with a bias is matched before the one without.
        BackwardGraphRewrite(
            [
                _late("linear_operators", "LinearConcatSplitting", "Conv|Gemm|MatMul", "Concat", makes=["Add"]),
                _late("linear_operators", "LinearMerging", "Conv|Gemm|MatMul"),
                _late("linear_operators", "LinearHoisting", "Conv|Gemm|MatMul", _MOVEMENTS),
                _late("linear_operators", "LinearSinking", "Conv|Gemm|MatMul", _MOVEMENTS),
            ],
            "LinearOperators",
        ),
        _late("divide_to_multiply", "DivideToMultiply", "Div", makes=["Mul"], by_default=False),
        _decomposition("decompositions", "BatchNormalizationDecomposition", "BatchNormalization", makes=["Add", "Mul"]),
        _decomposition("decompositions", "SwishDecomposition", "Swish", makes=["Mul", "Sigmoid"]),
        _decomposition(
            "quantization_decomposition",
            "DynamicQuantizationDecomposition",
            "DynamicQuantizeLinear",
            makes=[
                "Add", "Cast", "Div", "Equal", "IsNaN", "LessOrEqual", "Max", "Min", "ReduceMax", "ReduceMin", "Round",
                "Sub",
                "Where",
            ],
        ),
        _late("quantization_decomposition", "DequantizedConstantFolding", "DequantizeLinear", by_default=False),
    ]  # fmt: skip


def _internal() -> list[LatePass]:
    """The passes that make internal operators, in order."""
    return [
        # A sum with a residual would hide the product.
        _late("quantized_product_fusion", "QuantizedProductFusion", _QUANTIZED, by_default=False),
        _late("packed_attention_fusion", "PackedAttentionFusion", _ATTENTION, makes=["engine.FusedAttention"]),
        _late(
            "flattened_product_fusion",
            "FlattenedProductFusion",
            "Reshape",
            "Gemm|MatMul|engine.FusedMatMul",
            makes=["engine.FusedMatMul"],
        ),
        _late(
            "matmul_bias_fusion", "MatMulBiasFusion", "Add", "MatMul|engine.FusedMatMul", makes=["engine.FusedMatMul"]
        ),
        _late(
            "compressed_weights_fusion",
            "CompressedWeightsFusion",
            "DequantizeLinear|engine.CompressedMatMul",
            makes=["engine.CompressedMatMul"],
        ),
        _late(
            "compressed_gather_fusion",
            "CompressedGatherFusion",
            "Gather",
            "DequantizeLinear",
            makes=["engine.CompressedGather"],
        ),
        _late("expert_matmul_fusion", "ExpertMatMulFusion", "Gather", "MatMul", makes=["engine.ExpertMatMul"]),
        _late("residual_fusion", "ResidualFusion", "Add|Sum", makes=["engine.FusedConv", "engine.FusedMatMul"]),
        _late("activation_fusion", "ActivationFusion", _ACTIVATIONS, makes=["engine.FusedConv", "engine.FusedMatMul"]),
        _late("byte_table_fusion", "ByteTableFusion", "QuantizeLinear", by_default=False),
        _late(
            "quantized_fusion",
            "QuantizedFusion",
            "DequantizeLinear|MatMulInteger|engine.QuantizedConv|engine.QuantizedMatMul",
            by_default=False,
        ),
        _late("quantized_maps_fusion", "QuantizedMapsFusion", _QUANTIZED, by_default=False),
        _late("quantized_softmax_fusion", "QuantizedSoftmaxFusion", "QuantizeLinear", by_default=False),
        # The rest of the quantization.
        _decomposition(
            "integer_product_decomposition",
            "IntegerProductDecomposition",
            "ConvInteger",
            "MatMulInteger",
            makes=["Add", "Cast", "Conv", "Floor", "MatMul", "Mul", "Sub"],
        ),
        _decomposition(
            "quantization_decomposition",
            "QuantizationDecomposition",
            "DequantizeLinear",
            "QuantizeLinear",
            makes=["Add", "Cast", "Div", "IsNaN", "Max", "Min", "Mul", "Round", "Sub", "Where"],
        ),
    ]  # fmt: skip


def _late(
    module: str, name: str, *needs: str, makes: Iterable[str] = (), removes: Iterable[str] = (), by_default: bool = True
) -> LatePass:
    """A pass in this package, by its module and class; see `LatePass`."""
    return LatePass(f"{__package__}.{module}.{name}", *needs, makes=makes, removes=removes, by_default=by_default)


def _decomposition(module: str, name: str, *removes: str, makes: Iterable[str] = ()) -> LatePass:
    """The same, which needs one of the operators that it replaces."""
    return _late(module, name, "|".join(removes), makes=makes, removes=removes)


_FUNCTIONS: Final = (
    "Attention", "CausalConvWithState", "CenterCropPad", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    "SwiGLU", "ai.onnx.preview.FlexAttention",
)  # fmt: skip
_OPERATORS: Final = (
    "BatchNormalization", "Dropout", "Gemm", "MaxUnpool", "OneHot", "ReverseSequence",
    "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer", "ai.onnx.ml.FeatureVectorizer", "ai.onnx.ml.Imputer",
    "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.LinearClassifier", "ai.onnx.ml.LinearRegressor", "ai.onnx.ml.Normalizer",
    "ai.onnx.ml.OneHotEncoder", "ai.onnx.ml.SVMClassifier", "ai.onnx.ml.Scaler",
    "ai.onnx.preview.training.Adagrad", "ai.onnx.preview.training.Adam", "ai.onnx.preview.training.Momentum",
)  # fmt: skip
_ATTENTION: Final = "Attention|engine.FusedAttention"
_QUANTIZED: Final = "DequantizeLinear|QuantizeLinear"
_MOVEMENTS: Final = "AveragePool|Gather|GlobalAveragePool|Pad|ReduceMean|ReduceSum|Reshape|Resize|Slice|Transpose"
_ACTIVATIONS: Final = "|".join(name for name in ACTIVATIONS if name != "GeluTanh")  # an attribute of Gelu
