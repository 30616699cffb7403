"""The families of operators that are imported when one of their operators is looked up: most models need few of them.

The other modules of this package are imported with it: the families of the most frequent operators, and those that
declare what `imported_operators_with` is asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

from engine.startup import paused_collector

Operator: TypeAlias = "tuple[str, str]"
"""Domain and name."""
_T = TypeVar("_T")

_ML: Final = "ai.onnx.ml"
_INTERNAL: Final = "engine"

FAMILIES: Final[dict[str, dict[str, str]]] = {
    "attention": {"": "Attention"},
    "classical": {
        _ML: "ArrayFeatureExtractor CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer "
        "LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler ZipMap"
    },
    "control_flow": {"": "If Loop Scan SequenceMap"},
    "conv": {
        "": "CausalConvWithState Col2Im Conv ConvInteger ConvTranspose DeformConv QLinearConv",
        _INTERNAL: "FusedConv QuantizedConv",
    },
    "conv_transpose": {"": "ConvTranspose"},
    "einsum": {"": "Einsum"},
    "flex_attention": {"ai.onnx.preview": "FlexAttention"},
    "images": {"": "ImageDecoder"},
    "internal.byte_table": {_INTERNAL: "ByteTable"},
    "internal.channel_normalization": {_INTERNAL: "ChannelNormalization"},
    "internal.channel_shuffle": {_INTERNAL: "ChannelShuffle"},
    "internal.compressed_gather": {_INTERNAL: "CompressedGather"},
    "internal.compressed_matmul": {_INTERNAL: "CompressedMatMul"},
    "internal.expert_matmul": {_INTERNAL: "ExpertMatMul"},
    "internal.fused_attention": {_INTERNAL: "FusedAttention"},
    "internal.fused_conv": {_INTERNAL: "FusedConv"},
    "internal.fused_matmul": {_INTERNAL: "FusedMatMul"},
    "internal.quantized": {_INTERNAL: "QuantizedConv QuantizedMatMul"},
    "internal.quantized_maps": {_INTERNAL: "QuantizedAveragePool QuantizedBinary"},
    "internal.quantized_product": {_INTERNAL: "QuantizedProduct"},
    "internal.quantized_softmax": {_INTERNAL: "QuantizedSoftmax"},
    "internal.scale_shift": {_INTERNAL: "ScaleShift"},
    "label_encoder": {_ML: "LabelEncoder"},
    "linear_attention": {"": "LinearAttention"},
    "losses": {"": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"},
    "matmul": {
        "": "Det Gemm MatMul MatMulInteger QLinearMatMul",
        _INTERNAL: "FusedMatMul QuantizedMatMul",
    },
    "normalization": {
        "": "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
        "MeanVarianceNormalization RMSNormalization"
    },
    "pool": {
        "": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool MaxUnpool",
        _INTERNAL: "QuantizedAveragePool",
    },
    "randomness": {"": "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"},
    "recurrent": {"": "GRU LSTM RNN"},
    "resize": {"": "Resize"},
    "roi_align": {"": "RoiAlign"},
    "rotary": {"": "RotaryEmbedding"},
    "sample": {"": "AffineGrid CenterCropPad DeformConv GridSample RoiAlign"},
    "sequences": {
        "": "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceErase SequenceInsert "
        "SplitToSequence"
    },
    "signal": {"": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT"},
    "softmax": {"": "Hardmax LogSoftmax Softmax"},
    "text": {"": "RegexFullMatch StringConcat StringNormalizer StringSplit"},
    "tfidf": {"": "TfIdfVectorizer"},
    "tokenizer": {"com.microsoft": "Tokenizer"},
    "training": {"ai.onnx.preview.training": "Adagrad Adam Momentum"},
    "tree_scores": {_ML: "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor"},
}
"""By module of this package: the operators of which it declares anything, by domain."""

_waiting: Final[dict[Operator, list[str]]] = {}
for _family, _domains in FAMILIES.items():
    for _domain, _names in _domains.items():
        for _name in _names.split():
            _waiting.setdefault((_domain, _name), []).append(f"{__package__}.{_family}")


def import_family(operator: Operator) -> bool:
    """Import all families that declare something of an operator; False if they are there.

    A thread that finds an operator waits for another one that is importing its family.
    """
    modules = _waiting.get(operator)
    if modules is None:
        return False
    with paused_collector():
        for module in modules:
            import_module(module)
    if not any(_is_begun(module) for module in modules):
        _waiting.pop(operator, None)
    return True


def import_families() -> None:
    """Import all families."""
    for operator in list(_waiting):
        import_family(operator)


def _is_begun(module: str) -> bool:
    """Whether a module is being imported, which asks for an operator of its own."""
    return bool(getattr(sys.modules[module].__spec__, "_initializing", False))


class Declarations(dict[Operator, _T]):
    """What families declare of operators. One that has no entry gets its family imported first; None without any."""

    __slots__ = ()

    def __missing__(self, operator: Operator) -> Any:
        return self.get(operator) if import_family(operator) else None
