"""Internal operators, of the domain `engine`: computations that devices fuse and that ONNX has no operator for.

Passes create them for devices that enable this; devices without a kernel for one, every export, the reference
evaluation and type inference use its decomposition to ONNX operators.
"""

from engine.ops.fused_activation import ACTIVATIONS, Activation, activation_of, apply_activation
from engine.ops.internal.byte_table import ByteTable, byte_codes
from engine.ops.internal.channel_normalization import ChannelNormalization
from engine.ops.internal.channel_shuffle import ChannelShuffle
from engine.ops.internal.compressed_gather import CompressedGather, CompressedGatherSpec
from engine.ops.internal.compressed_matmul import CompressedMatMul, CompressedMatMulSpec
from engine.ops.internal.definition import as_onnx, decompose, has_internal_nodes, is_internal
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
from engine.ops.registry import INTERNAL_DOMAIN

__all__ = [
    "ACTIVATIONS", "BINARY_OPERATORS", "INTERNAL_DOMAIN", "Activation", "ByteTable", "ChannelNormalization",
    "ChannelShuffle", "Codes", "CompressedGather", "CompressedGatherSpec", "CompressedMatMul",
    "CompressedMatMulSpec", "FusedAttention", "FusedAttentionSpec", "FusedConv", "FusedMatMul", "ProductOperands",
    "Quantized", "QuantizedAveragePool", "QuantizedBinary", "QuantizedBinarySpec", "QuantizedConv",
    "QuantizedMatMul", "QuantizedProduct", "QuantizedSoftmax", "QuantizedSoftmaxSpec", "ScaleShift", "activation_of",
    "apply_activation", "as_onnx", "byte_codes", "decompose", "has_internal_nodes", "is_internal", "softmax_codes",
]  # fmt: skip
