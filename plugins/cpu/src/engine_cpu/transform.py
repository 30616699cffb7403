"""Step one of compiling: transform the user's model for lowering."""

from __future__ import annotations

from typing import Final

from engine.ir import Model
from engine.lowering import prepare
from engine.passes import Manager, PassPipeline
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import InternalAttentionFusion
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.flattened_product_fusion import FlattenedProductFusion
from engine.passes.common.integer_product_decomposition import IntegerProductDecomposition
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.packed_attention_fusion import PackedAttentionFusion
from engine.passes.common.qdq_propagation import DequantizeSinking, QuantizeHoisting
from engine.passes.common.qoperator_decomposition import QOperatorDecomposition
from engine.passes.common.quantization_decomposition import (
    DequantizedConstantFolding,
    DynamicQuantizationDecomposition,
    QuantizationDecomposition,
)
from engine.passes.common.quantized_fusion import QuantizedFusion
from engine.passes.common.residual_fusion import ResidualFusion
from engine.passes.common.widen_precision import WidenPrecision
from engine_cpu.lowering import LOWERINGS, CpuGraph
from engine_cpu.passes.channel_shuffle_fusion import ChannelShuffleFusion
from engine_cpu.passes.einsum_forms import stays_whole
from engine_cpu.passes.quantized_forms import stays_in_f32, stays_in_place
from engine_cpu.passes.scale_shift_fusion import ScaleShiftFusion
from engine_cpu.passes.split_concat_elimination import SplitConcatElimination


def prepare_model(model: Model) -> CpuGraph:
    """A transformed and folded copy of `model`, with the decisions for its nodes."""
    return prepare(model, LOWERINGS, PASSES)


def _register(manager: Manager) -> None:
    manager.register_pass(WidenPrecision(accepts=lambda node: LOWERINGS.decide(node).refusal is None))
    manager.register_pass(CommonOptimizations)
    manager.register_pass(ScaleShiftFusion)
    manager.register_pass(ChannelShuffleFusion)
    manager.register_pass(SplitConcatElimination)
    manager.pass_config.enable(
        FlattenedProductFusion, MatMulBiasFusion, ResidualFusion, ActivationFusion, ChannelsFirstSinking
    )
    manager.pass_config.enable(InternalAttentionFusion, PackedAttentionFusion, EinsumDecomposition)
    manager.pass_config.enable(QOperatorDecomposition, DynamicQuantizationDecomposition)
    manager.pass_config.enable(DequantizedConstantFolding)
    manager.pass_config.enable(QuantizedFusion, IntegerProductDecomposition, QuantizationDecomposition)
    manager.pass_config.set_callback(QuantizedFusion, callback=stays_in_f32)
    for moving in (DequantizeSinking, QuantizeHoisting):
        manager.pass_config.set_callback(moving, callback=stays_in_place)
    manager.pass_config.set_callback(EinsumDecomposition, callback=stays_whole)


PASSES: Final = PassPipeline(_register)
"""The passes that the device runs on every model."""
