"""Internal operators, of the domain `engine`: computations that devices fuse and that ONNX has no operator for.

Passes create them for devices that enable this; devices without a kernel for one, every export, the reference
evaluation and type inference use its decomposition to ONNX operators.
"""

from engine.ops.fused_activation import ACTIVATIONS, Activation, activation_of, apply_activation
from engine.ops.internal.channel_normalization import ChannelNormalization
from engine.ops.internal.channel_shuffle import ChannelShuffle
from engine.ops.internal.definition import as_onnx, decompose, has_internal_nodes, is_internal
from engine.ops.internal.fused_attention import FusedAttention, FusedAttentionSpec
from engine.ops.internal.fused_conv import FusedConv
from engine.ops.internal.fused_matmul import FusedMatMul
from engine.ops.internal.quantized import Quantized, QuantizedConv, QuantizedMatMul
from engine.ops.internal.scale_shift import ScaleShift
from engine.ops.registry import INTERNAL_DOMAIN

__all__ = [
    "ACTIVATIONS", "INTERNAL_DOMAIN", "Activation", "ChannelNormalization", "ChannelShuffle", "FusedAttention",
    "FusedAttentionSpec", "FusedConv", "FusedMatMul", "Quantized", "QuantizedConv", "QuantizedMatMul", "ScaleShift",
    "activation_of", "apply_activation", "as_onnx", "decompose", "has_internal_nodes", "is_internal",
]  # fmt: skip
