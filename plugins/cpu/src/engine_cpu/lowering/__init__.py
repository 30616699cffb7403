"""The lowerings of native operators, one file per family, each imported when a model has one of its operators."""

from __future__ import annotations

from typing import Final

from engine_cpu.lowering import elementwise, extension  # noqa: F401  they register their lowerings
from engine_cpu.lowering.registry import LOWERINGS, CpuDecisions, CpuGraph, OpLowering, decisions, lowers

__all__ = ["LOWERINGS", "CpuDecisions", "CpuGraph", "OpLowering", "decisions", "lowers"]

_FAMILIES: Final = {
    "attention": ["Attention", "engine.FusedAttention"],
    "byte_table": ["engine.ByteTable"],
    "channel_shuffle": ["engine.ChannelShuffle"],
    "compressed": ["engine.CompressedGather", "engine.CompressedMatMul"],
    "control_flow": ["If", "Loop", "Scan"],
    "conv": ["Conv", "ConvTranspose", "engine.FusedConv"],
    "counted": ["Compress", "NonMaxSuppression", "NonZero", "Unique"],
    "create": ["ConstantOfShape", "EyeLike", "Range"],
    "einsum": ["Einsum"],
    "experts": ["engine.ExpertMatMul"],
    "gather": [
        "Gather", "GatherElements", "GatherND", "OneHot", "ScatterElements", "ScatterND", "TensorScatter", "Trilu",
    ],
    "integer_conv": ["ConvInteger"],
    "linear_attention": ["LinearAttention"],
    "linear_scores": ["ai.onnx.ml.LinearClassifier", "ai.onnx.ml.LinearRegressor"],
    "matmul": ["Gemm", "MatMul", "engine.FusedMatMul"],
    "normalization": ["LayerNormalization", "LpNormalization", "RMSNormalization", "ai.onnx.ml.Normalizer"],
    "normalization_maps": [
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "MeanVarianceNormalization",
        "engine.ChannelNormalization", "engine.ScaleShift",
    ],
    "pad": ["Pad"],
    "pool": ["AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"],
    "quantized": ["MatMulInteger", "engine.QuantizedConv", "engine.QuantizedMatMul"],
    "quantized_maps": ["engine.QuantizedAveragePool", "engine.QuantizedBinary"],
    "quantized_product": ["engine.QuantizedProduct"],
    "recurrent": ["GRU", "LSTM", "RNN"],
    "reduce": [
        "ArgMax", "ArgMin", "CumProd", "CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    ],
    "reshape": ["BitCast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"],
    "resize": ["Resize"],
    "rotary": ["RotaryEmbedding"],
    "sample": ["GridSample", "RoiAlign"],
    "select": ["TopK"],
    "slice": ["Concat", "Slice", "Split", "Tile"],
    "softmax": ["Hardmax", "LogSoftmax", "Softmax", "engine.QuantizedSoftmax"],
    "support_vectors": ["ai.onnx.ml.SVMClassifier", "ai.onnx.ml.SVMRegressor"],
    "transpose": ["DepthToSpace", "SpaceToDepth", "Transpose"],
    "trees": [f"ai.onnx.ml.{name}" for name in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")],
    "unrolled": ["Col2Im", "DeformConv"],
}  # fmt: skip
"""The operators that a module of this folder lowers, those of other domains with their domain."""

for _module, _operators in _FAMILIES.items():
    for _domain, _, _name in (each.rpartition(".") for each in _operators):
        LOWERINGS.lowers_on_demand(f"{__name__}.{_module}", _name, domain=_domain)
