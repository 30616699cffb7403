"""Step one of compiling: transform the user's model for lowering.

What few models need is imported for them.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from engine.ir import Constant, Model, Node
from engine.lowering import prepare
from engine.ops.internal import INTERNAL_DOMAIN
from engine.passes import GraphRewrite, Manager, PassPipeline
from engine.passes.common.common_optimizations import CommonOptimizations, named_passes
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.widen_precision import WidenPrecision
from engine.passes.late import LatePass
from engine_cpu.lowering import LOWERINGS, CpuGraph
from engine_cpu.passes.narrow_bodies import NarrowBodies
from engine_cpu.passes.quantized_forms import CAPABILITIES


def prepare_model(
    model: Model,
    group_size: int = 0,
    *,
    is_accurate: bool = False,
    rounds_weights: bool = False,
    keeps_codes: bool = False,
) -> CpuGraph:
    """A transformed and folded copy of `model`, with the decisions for its nodes.

    `group_size`: the value of `DYNAMIC_QUANTIZATION_GROUP_SIZE`. `is_accurate`: activations are not rounded even if the
    model permits it. `rounds_weights`: large weights are rounded to bf16, see `WeightRounding`.
    `keeps_codes`: products with weights of 8 bits are not slower than with f32, see `DequantizationRecognition`.
    """
    return prepare(model, LOWERINGS, _pipeline(group_size, is_accurate, rounds_weights, keeps_codes))


_CODES: Final = (
    "engine_cpu.passes.dequantization_recognition.DequantizationRecognition", "Cast", "Mul", "Gather|Gemm|MatMul"
)  # fmt: skip
_TRANSPOSED: Final = (
    "engine_cpu.passes.transposed_product_fusion.TransposedProductFusion", "Transpose", "Gemm|MatMul|engine.FusedMatMul"
)  # fmt: skip


def _register(manager: Manager) -> None:
    manager.register_pass(WidenPrecision(accepts=LOWERINGS.has_kernel))
    manager.register_pass(NarrowBodies(lambda body: PASSES.run(body)))
    manager.register_pass(CommonOptimizations)
    for late in (
        LatePass("engine_cpu.passes.scale_shift_fusion.ScaleShiftFusion", "BatchNormalization"),
        LatePass("engine_cpu.passes.channel_shuffle_fusion.ChannelShuffleFusion", "Reshape", "Transpose"),
        LatePass("engine_cpu.passes.split_concat_elimination.SplitConcatElimination", "Concat"),
        LatePass(*_TRANSPOSED),
        LatePass(
            "engine_cpu.passes.transposed_conv_decomposition.TransposedConvDecomposition",
            f"ConvTranspose|{INTERNAL_DOMAIN}.FusedConv",
        ),
    ):
        manager.register_pass(late)
    LOWERINGS.configure(manager.pass_config)
    CAPABILITIES.configure(manager.pass_config)
    manager.pass_config.set_callback("FunctionDecomposition", callback=_stays)
    manager.pass_config.set_callback("DequantizedConstantFolding", callback=_is_looked_up)
    manager.pass_config.set_callback("EinsumDecomposition", callback=_stays_whole)
    manager.pass_config.set_callback("QuantizationDecomposition", callback=_is_elementwise)


def _stays(node: Node) -> bool:
    """Whether an operator is not replaced by its definition. An Attention may get a kernel when lengths are known."""
    if node.op_type == "Attention" and not node.domain:
        return node.num_outputs < 4 or not node.output(3).num_consumers  # no kernel writes the scores
    return LOWERINGS.has_kernel(node)


def _stays_whole(einsum: Node) -> bool:
    """Whether an Einsum is not decomposed."""
    from engine_cpu.passes.einsum_forms import stays_whole

    return stays_whole(einsum)


def _is_looked_up(source: Node) -> bool:
    """Whether dequantized constants are the table of look-ups."""
    from engine.passes.common.compressed_gather_fusion import is_looked_up

    return is_looked_up(source)


def _is_elementwise(quantization: Node) -> bool:
    """Whether a quantization or dequantization that is computed has a kernel."""
    return not isinstance(quantization.input_value(0).node, Constant) and LOWERINGS.has_kernel(quantization)


PASSES: Final = PassPipeline(_register)
"""The passes that the device runs on every model."""


_SIMPLIFICATIONS: Final = (
    "ExpandElimination", "MaskSimplification", "IndexGridElimination", "RowScatterFusion", "ReshapeMerge",
)  # fmt: skip
_LAYOUT: Final = ("FlattenedTransposeFusion", "TransposeMerge", "TransposeToReshape", "ReshapeMerge")
_RECOGNITIONS: Final = (
    "RotaryEmbeddingFusion", "AttentionFusion", "InternalAttentionFusion", "GroupedQueryFusion", "AttentionHeadsFusion",
)  # fmt: skip


def _register_known(manager: Manager) -> None:
    """Register the passes that recognise attention and masks; none reads weights, which may have been packed and
    released.
    """
    simplifications, layout, recognitions = map(named_passes, (_SIMPLIFICATIONS, _LAYOUT, _RECOGNITIONS))
    manager.register_pass(GraphRewrite([IdentityElimination, *simplifications], "Simplifications"))
    manager.register_pass(GraphRewrite(layout, "Layout"))
    for recognition in recognitions:
        manager.register_pass(recognition)
    manager.register_pass(
        LatePass(
            "engine_cpu.passes.causal_mask_decomposition.CausalMaskDecomposition",
            "Add|And|Attention|Where|engine.FusedAttention",
        )
    )
    manager.register_pass(LatePass(*_TRANSPOSED))
    manager.register_pass(DeadCodeElimination)


KNOWN_PASSES: Final = PassPipeline(_register_known)
"""The passes that the device runs on a model of unknown lengths once they are known."""


@cache
def _pipeline(group_size: int, is_accurate: bool, rounds_weights: bool, keeps_codes: bool) -> PassPipeline:
    """`PASSES`, with those that these choices need."""
    if not (group_size or is_accurate or rounds_weights or keeps_codes):
        return PASSES

    def register(manager: Manager) -> None:
        if keeps_codes:
            manager.register_pass(LatePass(*_CODES))
        _register(manager)
        if is_accurate:
            from engine_cpu.passes.activation_rounding import ActivationRetention

            manager.register_pass(ActivationRetention)
            return
        if group_size:
            from engine_cpu.passes.activation_rounding import ActivationRounding

            manager.register_pass(ActivationRounding(group_size))
        if rounds_weights:
            from engine_cpu.passes.weight_rounding import WeightRounding

            manager.register_pass(WeightRounding)

    return PassPipeline(register)
