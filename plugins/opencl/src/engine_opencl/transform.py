"""Step one of compiling: transform the user's model for lowering."""

from __future__ import annotations

from functools import cache

from engine.lowering import prepare
from engine.passes import Manager, PassPipeline
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import InternalAttentionFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.convert_precision import ConvertPrecision
from engine.passes.common.decompositions import MeanVarianceNormalizationDecomposition
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.function_decomposition import FunctionDecomposition
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.residual_fusion import ResidualFusion
from engine.plugin_api import Model
from engine_opencl.lowering import LOWERINGS, OpenclGraph


def prepare_model(model: Model, precision: str = "f32") -> OpenclGraph:
    """A transformed and folded copy of `model`, with the decisions for its nodes.

    Its f32 values are stored in `precision`.
    """
    return prepare(model, LOWERINGS, passes_for(precision))


@cache
def passes_for(precision: str) -> PassPipeline:
    """The passes that the device runs on every model of a precision."""

    def register(manager: Manager) -> None:
        manager.register_pass(CommonOptimizations)
        manager.pass_config.enable(MatMulBiasFusion, ResidualFusion, ActivationFusion, InternalAttentionFusion)
        manager.pass_config.enable(EinsumDecomposition, FunctionDecomposition, MeanVarianceNormalizationDecomposition)
        if precision == "f16":
            manager.register_pass(ConvertPrecision(accepts=lambda node: LOWERINGS.decide(node).refusal is None))

    return PassPipeline(register)
