"""Step one of compiling: transform the user's model for lowering."""

from __future__ import annotations

from functools import cache
from typing import Final

from engine.ir import Constant, Model, Node
from engine.lowering import prepare
from engine.passes import GraphRewrite, Manager, PassPipeline
from engine.passes.common.attention_fusion import AttentionFusion, InternalAttentionFusion
from engine.passes.common.attention_heads_fusion import AttentionHeadsFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.compressed_gather_fusion import is_looked_up
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.expand_elimination import ExpandElimination
from engine.passes.common.flattened_transpose import FlattenedTransposeFusion
from engine.passes.common.function_decomposition import FunctionDecomposition
from engine.passes.common.grouped_query_fusion import GroupedQueryFusion
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.index_grid_elimination import IndexGridElimination
from engine.passes.common.mask_simplification import MaskSimplification
from engine.passes.common.quantization_decomposition import (
    DequantizedConstantFolding,
    QuantizationDecomposition,
)
from engine.passes.common.reshape_merge import ReshapeMerge
from engine.passes.common.rotary_embedding_fusion import RotaryEmbeddingFusion
from engine.passes.common.transpose_merge import TransposeMerge, TransposeToReshape
from engine.passes.common.widen_precision import WidenPrecision
from engine_cpu.lowering import LOWERINGS, CpuGraph
from engine_cpu.passes.activation_rounding import ActivationRetention, ActivationRounding
from engine_cpu.passes.causal_mask_decomposition import CausalMaskDecomposition
from engine_cpu.passes.channel_shuffle_fusion import ChannelShuffleFusion
from engine_cpu.passes.einsum_forms import stays_whole
from engine_cpu.passes.narrow_bodies import NarrowBodies
from engine_cpu.passes.quantized_forms import CAPABILITIES
from engine_cpu.passes.scale_shift_fusion import ScaleShiftFusion
from engine_cpu.passes.split_concat_elimination import SplitConcatElimination


def prepare_model(model: Model, group_size: int = 0, *, is_accurate: bool = False) -> CpuGraph:
    """A transformed and folded copy of `model`, with the decisions for its nodes.

    `group_size`: the value of `DYNAMIC_QUANTIZATION_GROUP_SIZE`. `is_accurate`: activations are not rounded even if the
    model permits it.
    """
    if is_accurate:
        return prepare(model, LOWERINGS, _ACCURATE)
    return prepare(model, LOWERINGS, _rounding(group_size) if group_size else PASSES)


def _register(manager: Manager) -> None:
    manager.register_pass(WidenPrecision(accepts=LOWERINGS.has_kernel))
    manager.register_pass(NarrowBodies(lambda body: PASSES.run(body)))
    manager.register_pass(CommonOptimizations)
    manager.register_pass(ScaleShiftFusion)
    manager.register_pass(ChannelShuffleFusion)
    manager.register_pass(SplitConcatElimination)
    LOWERINGS.configure(manager.pass_config)
    CAPABILITIES.configure(manager.pass_config)
    manager.pass_config.set_callback(FunctionDecomposition, callback=_stays)
    manager.pass_config.set_callback(DequantizedConstantFolding, callback=is_looked_up)
    manager.pass_config.set_callback(EinsumDecomposition, callback=stays_whole)
    manager.pass_config.set_callback(QuantizationDecomposition, callback=_is_elementwise)


def _stays(node: Node) -> bool:
    """Whether an operator is not replaced by its definition. An Attention may get a kernel when lengths are known."""
    if node.op_type == "Attention" and not node.domain:
        return node.num_outputs < 4 or not node.output(3).num_consumers  # no kernel writes the scores
    return LOWERINGS.has_kernel(node)


def _is_elementwise(quantization: Node) -> bool:
    """Whether a quantization or dequantization that is computed has a kernel."""
    return not isinstance(quantization.input_value(0).node, Constant) and LOWERINGS.has_kernel(quantization)


PASSES: Final = PassPipeline(_register)
"""The passes that the device runs on every model."""


def _register_known(manager: Manager) -> None:
    """Register the passes that recognise attention and masks; none reads weights, which may have been packed and
    released.
    """
    for rewrite in (
        GraphRewrite(
            [IdentityElimination, ExpandElimination, MaskSimplification, IndexGridElimination, ReshapeMerge],
            "Simplifications",
        ),
        GraphRewrite([FlattenedTransposeFusion, TransposeMerge, TransposeToReshape, ReshapeMerge], "Layout"),
    ):
        manager.register_pass(rewrite)
    manager.register_pass(RotaryEmbeddingFusion)
    manager.register_pass(AttentionFusion)
    manager.register_pass(InternalAttentionFusion)
    manager.register_pass(GroupedQueryFusion)
    manager.register_pass(AttentionHeadsFusion)
    manager.register_pass(CausalMaskDecomposition)
    manager.register_pass(DeadCodeElimination)


KNOWN_PASSES: Final = PassPipeline(_register_known)
"""The passes that the device runs on a model of unknown lengths once they are known."""


def _register_accurate(manager: Manager) -> None:
    _register(manager)
    manager.register_pass(ActivationRetention)


_ACCURATE: Final = PassPipeline(_register_accurate)
"""The same, and no product rounds activations."""


@cache
def _rounding(group_size: int) -> PassPipeline:
    """The same, and products that round activations."""

    def register(manager: Manager) -> None:
        _register(manager)
        manager.register_pass(ActivationRounding(group_size))

    return PassPipeline(register)
