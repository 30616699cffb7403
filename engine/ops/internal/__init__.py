"""Internal operators, of the domain `engine`: what devices compute in one step and ONNX has no operator for.

Passes make them for devices that ask for them; a device that has no kernel for one, and every export, uses its
decomposition to ONNX, which is also how they are evaluated and how their types are inferred.
"""

from engine.ops.fused_activation import ACTIVATIONS, Activation, activation_of, apply_activation
from engine.ops.internal.channel_normalization import ChannelNormalization
from engine.ops.internal.channel_shuffle import ChannelShuffle
from engine.ops.internal.definition import as_onnx, decompose, has_internal_nodes, is_internal
from engine.ops.internal.fused_attention import FusedAttention, FusedAttentionSpec
from engine.ops.internal.fused_conv import FusedConv
from engine.ops.internal.fused_matmul import FusedMatMul
from engine.ops.internal.scale_shift import ScaleShift
from engine.ops.registry import INTERNAL_DOMAIN

__all__ = [
    "ACTIVATIONS", "INTERNAL_DOMAIN", "Activation", "ChannelNormalization", "ChannelShuffle", "FusedAttention",
    "FusedAttentionSpec", "FusedConv", "FusedMatMul", "ScaleShift", "activation_of", "apply_activation", "as_onnx",
    "decompose", "has_internal_nodes", "is_internal",
]  # fmt: skip
