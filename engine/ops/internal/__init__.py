"""Internal operators, of the domain `engine`: computations that devices fuse and that ONNX has no operator for.

Passes create them for devices that enable this; devices without a kernel for one, every export, the reference
evaluation and type inference use its decomposition to ONNX operators.
"""

from typing import TYPE_CHECKING

from engine.ops.fused_activation import ACTIVATIONS, Activation, activation_of, apply_activation
from engine.ops.internal.definition import as_onnx, decompose, has_internal_nodes, is_internal
from engine.ops.registry import INTERNAL_DOMAIN
from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.ops.internal.byte_table import ByteTable, byte_codes
    from engine.ops.internal.channel_normalization import ChannelNormalization
    from engine.ops.internal.channel_shuffle import ChannelShuffle
    from engine.ops.internal.compressed_gather import CompressedGather, CompressedGatherSpec
    from engine.ops.internal.compressed_matmul import CompressedMatMul, CompressedMatMulSpec
    from engine.ops.internal.expert_matmul import NO_EXPERT, ExpertMatMul, ExpertMatMulSpec
    from engine.ops.internal.fused_attention import FusedAttention, FusedAttentionSpec
    from engine.ops.internal.fused_conv import FusedConv
    from engine.ops.internal.fused_matmul import FusedMatMul
    from engine.ops.internal.quantized import Quantized, QuantizedConv, QuantizedMatMul
    from engine.ops.internal.quantized_maps import (
        BINARY_OPERATORS,
        Codes,
        QuantizedAveragePool,
        QuantizedBinary,
        QuantizedBinarySpec,
    )
    from engine.ops.internal.quantized_product import ProductOperands, QuantizedProduct
    from engine.ops.internal.quantized_softmax import QuantizedSoftmax, QuantizedSoftmaxSpec, softmax_codes
    from engine.ops.internal.scale_shift import ScaleShift
else:
    # Each with its operator: see `engine.ops.families`.
    __getattr__ = names_on_demand(__name__, {
        "engine.ops.internal.byte_table": ["ByteTable", "byte_codes"],
        "engine.ops.internal.channel_normalization": ["ChannelNormalization"],
        "engine.ops.internal.channel_shuffle": ["ChannelShuffle"],
        "engine.ops.internal.compressed_gather": ["CompressedGather", "CompressedGatherSpec"],
        "engine.ops.internal.compressed_matmul": ["CompressedMatMul", "CompressedMatMulSpec"],
        "engine.ops.internal.expert_matmul": ["NO_EXPERT", "ExpertMatMul", "ExpertMatMulSpec"],
        "engine.ops.internal.fused_attention": ["FusedAttention", "FusedAttentionSpec"],
        "engine.ops.internal.fused_conv": ["FusedConv"],
        "engine.ops.internal.fused_matmul": ["FusedMatMul"],
        "engine.ops.internal.quantized": ["Quantized", "QuantizedConv", "QuantizedMatMul"],
        "engine.ops.internal.quantized_maps": [
            "BINARY_OPERATORS", "Codes", "QuantizedAveragePool", "QuantizedBinary", "QuantizedBinarySpec",
        ],
        "engine.ops.internal.quantized_product": ["ProductOperands", "QuantizedProduct"],
        "engine.ops.internal.quantized_softmax": ["QuantizedSoftmax", "QuantizedSoftmaxSpec", "softmax_codes"],
        "engine.ops.internal.scale_shift": ["ScaleShift"],
    })  # fmt: skip

__all__ = [
    "ACTIVATIONS", "BINARY_OPERATORS", "INTERNAL_DOMAIN", "NO_EXPERT", "Activation", "ByteTable",
    "ChannelNormalization", "ChannelShuffle", "Codes", "CompressedGather", "CompressedGatherSpec", "CompressedMatMul",
    "CompressedMatMulSpec", "ExpertMatMul", "ExpertMatMulSpec", "FusedAttention", "FusedAttentionSpec", "FusedConv",
    "FusedMatMul", "ProductOperands", "Quantized", "QuantizedAveragePool", "QuantizedBinary", "QuantizedBinarySpec",
    "QuantizedConv", "QuantizedMatMul", "QuantizedProduct", "QuantizedSoftmax", "QuantizedSoftmaxSpec", "ScaleShift",
    "activation_of", "apply_activation", "as_onnx", "byte_codes", "decompose", "has_internal_nodes", "is_internal",
    "softmax_codes",
]  # fmt: skip
