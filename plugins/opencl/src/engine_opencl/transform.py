"""Step one of compiling: turn the user's model into what the lowerings know."""

from __future__ import annotations

from engine.passes import Manager
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import InternalAttentionFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.convert_precision import ConvertPrecision
from engine.passes.common.decompositions import MeanVarianceNormalizationDecomposition
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.function_decomposition import FunctionDecomposition
from engine.passes.common.init_node_info import InitNodeInfo
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.residual_fusion import ResidualFusion
from engine.plugin_api import Model
from engine_opencl.lowering import decisions


def transform_model(model: Model, precision: str = "f32", *, keep_names: bool = False) -> Model:
    """A transformed copy of `model`, of whose values those of f32 are stored in `precision`.

    `keep_names`: to note on each node which of the model's nodes it stands for.
    """
    graph = model.clone()
    manager = Manager()
    if keep_names:
        manager.register_pass(InitNodeInfo)
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(MatMulBiasFusion, ResidualFusion, ActivationFusion, InternalAttentionFusion)
    manager.pass_config.enable(EinsumDecomposition, FunctionDecomposition, MeanVarianceNormalizationDecomposition)
    if precision == "f16":
        manager.register_pass(ConvertPrecision(accepts=lambda node: decisions().refusal(node) is None))
    manager.run_passes(graph)
    return graph
