"""The common optimizations on whole networks: how often each pass fires, and that nothing else changes.

If a count falls, a form that exporters emit is recognised no longer; if results differ, users get wrong answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine import PrePostProcessor, ops
from engine.ir import Constant, Model, Parameter, Result, f32, i4, u8
from engine.onnx import model_to_proto, read_model
from engine.passes import ConstantFolding, Manager, Pass, check_equivalence, list_passes
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import InternalAttentionFusion, RelaxedAttentionFusion
from engine.passes.common.branch_elimination import BranchElimination
from engine.passes.common.byte_table_fusion import ByteTableFusion
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.common_subexpression import CommonSubexpressionSharing
from engine.passes.common.compressed_gather_fusion import CompressedGatherFusion
from engine.passes.common.compressed_weights_fusion import CompressedWeightsFusion
from engine.passes.common.conv_batch_norm_fusion import ConvBatchNormFusion
from engine.passes.common.conv_bias_fusion import ConvBiasFusion
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.decompositions import (
    BatchNormalizationDecomposition,
    MeanVarianceNormalizationDecomposition,
    SwishDecomposition,
)
from engine.passes.common.divide_to_multiply import DivideToMultiply
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.expand_elimination import ExpandElimination
from engine.passes.common.flattened_product_fusion import FlattenedProductFusion
from engine.passes.common.function_decomposition import FunctionDecomposition
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.index_grid_elimination import IndexGridElimination
from engine.passes.common.integer_product_decomposition import IntegerProductDecomposition
from engine.passes.common.length_sharing import LengthSharing
from engine.passes.common.linear_operators import LinearSinking
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.packed_attention_fusion import PackedAttentionFusion
from engine.passes.common.position_decompositions import RotaryPositionsDecomposition, TensorScatterDecomposition
from engine.passes.common.qoperator_decomposition import QOperatorDecomposition
from engine.passes.common.quantization_decomposition import (
    DequantizedConstantFolding,
    DynamicQuantizationDecomposition,
    QuantizationDecomposition,
)
from engine.passes.common.quantized_fusion import QuantizedFusion
from engine.passes.common.quantized_maps_fusion import QuantizedMapsFusion
from engine.passes.common.quantized_product_fusion import QuantizedProductFusion
from engine.passes.common.quantized_softmax_fusion import QuantizedSoftmaxFusion
from engine.passes.common.reshape_merge import ReshapeMerge
from engine.passes.common.residual_fusion import ResidualFusion
from engine.passes.common.row_scatter_fusion import RowScatterFusion
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.common.swish_fusion import SwishFusion
from engine.testing.models import light_model
from engine.testing.networks import seeded_network
from engine.testing.onnx_suite import CASES as SUITE

INTERNAL = (MatMulBiasFusion, ActivationFusion, ResidualFusion)


def attention(layers: int, name: str = "AttentionFusion") -> dict[str, int]:
    """The passes that fire on the attention of each layer of a transformer."""
    return {name: layers, "AttentionHeadsFusion": layers, "QKVProjectionFusion": layers}


# Network, what is enabled beside the defaults, and how often the passes fire: all that do, but for the folding and
# cleaning ones, whose numbers say little.
CASES: list[tuple[str, tuple[Any, ...], dict[str, int]]] = [
    ("light/squeezenet", INTERNAL, {"ActivationFusion": 26}),
    (
        "light/resnet50",
        INTERNAL,
        {"ActivationFusion": 49, "ConvBatchNormFusion": 53, "GlobalPoolFusion": 1, "ResidualFusion": 16},
    ),
    (
        "light/shufflenet",
        INTERNAL,
        {"ActivationFusion": 30, "ConvBatchNormFusion": 49, "GlobalPoolFusion": 1, "ResidualFusion": 13},
    ),
    (
        "light/inception_v2",
        INTERNAL,
        {
            "ActivationFusion": 62,
            "ConvBatchNormFusion": 69,
            "ConvBiasFusion": 69,
            "ConvMultiplyFusion": 69,
            "GlobalPoolFusion": 1,
            "LinearHoisting": 7,
        },
    ),
    (
        "attention_einsum.script17.dynamic",
        (EinsumDecomposition, InternalAttentionFusion),
        {"EinsumDecomposition": 2} | attention(1, "InternalAttentionFusion"),
    ),
    ("mobilenet.script14.static", INTERNAL, {"ActivationFusion": 8, "ResidualFusion": 2}),
    ("mobilenet.dynamo20.static", INTERNAL, {"ActivationFusion": 8, "ResidualFusion": 2}),
    ("bytes/mobilenet.dynamo20.static", INTERNAL, {"ActivationFusion": 8, "ConvInputFusion": 1, "ResidualFusion": 2}),
    (
        "bert_sdpa.dynamo20.static",
        (RelaxedAttentionFusion,),
        {**attention(2, "RelaxedAttentionFusion"), "FlattenedTransposeFusion": 2},
    ),
    (
        "bert_eager.dynamo20.static",
        INTERNAL,
        {**attention(2), "ActivationFusion": 2, "MatMulBiasFusion": 8, "ResidualFusion": 4},
    ),
    ("bert_eager.dynamo20.dynamic", (), {**attention(2), "MaskSimplification": 1}),
    (
        "distilbert_sdpa.dynamo20.static",
        (RelaxedAttentionFusion,),
        {**attention(1, "RelaxedAttentionFusion"), "FlattenedTransposeFusion": 1},
    ),
    (
        "bert_sdpa.dynamo20.static",
        (InternalAttentionFusion, PackedAttentionFusion),
        {**attention(2, "InternalAttentionFusion"), "FlattenedTransposeFusion": 2, "PackedAttentionFusion": 2},
    ),
    (
        "gpt2_sdpa.dynamo20.static",
        (InternalAttentionFusion, PackedAttentionFusion),
        {
            "AttentionHeadsFusion": 1,
            "FlattenedTransposeFusion": 1,
            "GeluTanhFusion": 1,
            "InternalAttentionFusion": 1,
            "PackedAttentionFusion": 1,
        },
    ),
    ("vit_eager.dynamo20.static", (), {**attention(2), "MaskSimplification": 2}),
    ("gpt2_eager.dynamo20.static", (), {"AttentionFusion": 1, "AttentionHeadsFusion": 1, "GeluTanhFusion": 1}),
    (
        "gpt2_eager.dynamo20.static",
        (FlattenedProductFusion, *INTERNAL),
        {
            "ActivationFusion": 1,
            "AttentionFusion": 1,
            "AttentionHeadsFusion": 1,
            "FlattenedProductFusion": 4,
            "GeluTanhFusion": 1,
            "ResidualFusion": 2,
        },
    ),
    (
        "llama_eager.dynamo20.static",
        (),
        {
            **attention(1),
            "GroupedQueryFusion": 1,
            "RMSNormalizationFusion": 3,
            "RotaryEmbeddingFusion": 2,
            "SwishFusion": 1,
        },
    ),
    (
        "llama_sdpa.dynamo23.static",
        (),
        {
            "AttentionHeadsFusion": 1,
            "GroupedQueryFusion": 1,
            "QKVProjectionFusion": 1,
            "RotaryEmbeddingFusion": 2,
            "SwishFusion": 1,
        },
    ),
    ("t5.dynamo20.static", (), {**attention(1), "FlattenedTransposeFusion": 1, "RMSNormalizationFusion": 3}),
    ("whisper.dynamo20.static", (), {**attention(1), "FlattenedTransposeFusion": 1}),
    (
        "segformer.dynamo20.static",
        (),
        {
            "AttentionFusion": 2,
            "AttentionHeadsFusion": 1,
            "FlattenedTransposeFusion": 2,
            "QKVProjectionFusion": 1,
            "TransposeToReshape": 4,
        },
    ),
    (
        "seeded/segformer_b0",
        (),
        {
            "AttentionFusion": 4,
            "AttentionHeadsFusion": 3,
            "FlattenedTransposeFusion": 5,
            "LinearConcatSplitting": 1,
            "LinearMerging": 4,
            "QKVProjectionFusion": 1,
            "TransposeMerge": 4,
            "TransposeToReshape": 4,
        },
    ),
    ("mobilevit.dynamo20.static", (), {**attention(1), "SwishFusion": 1}),
    (
        "attention_windows.dynamo20.static",
        (RelaxedAttentionFusion,),
        {**attention(1, "RelaxedAttentionFusion"), "AttentionBiasMerging": 1, "WindowMaskSinking": 1},
    ),
    (
        "attention_windows.script14.static",
        (),
        {**attention(1), "AttentionBiasMerging": 1, "WindowMaskSinking": 1},
    ),
    (
        "convnext.script14.static",
        (ChannelsFirstSinking, *INTERNAL),
        {
            "ActivationFusion": 3,
            "ChannelsFirstSinking": 5,
            "ConvBiasFusion": 6,
            "ConvMultiplyFusion": 3,
            "GeluFusion": 3,
            "LayerNormalizationFusion": 5,
            "ResidualFusion": 3,
        },
    ),
    ("squeeze_excite.script14.static", INTERNAL, {"ActivationFusion": 3, "SwishFusion": 2}),
    ("group_norm.script14.dynamic", (), {"GroupNormalizationFusion": 1}),
    ("mish.script14.static", (), {"MishFusion": 1}),
    ("hard_swish_spelled.dynamo20.static", (), {"HardSwishFusion": 1}),
    ("linear.script14.dynamic", (), {"GemmFusion": 1}),
    ("pad_conv.script14.dynamic", (), {"PadConvFusion": 1}),
    ("channels_last_head.script14.static", (), {"TransposeSinking": 1}),
    ("quantized.ort17.static", (), {"DequantizeSinking": 1, "QuantizePairElimination": 1}),
    ("quantized_head.ort17.static", (), {"DequantizeSinking": 1, "QuantizeHoisting": 1, "TransposeSinking": 1}),
    ("pooled_head.script14.static", (), {"GlobalPoolFusion": 1, "SwishFusion": 1}),
    ("pooled_head.dynamo20.dynamic", (), {"GlobalPoolFusion": 1, "SwishFusion": 1}),
    (
        "attention_boolean.dynamo18.static",
        (),
        {"FlattenedTransposeFusion": 1, "QKVProjectionFusion": 1, "TransposeMerge": 1},
    ),
]
# Network, passes that run first, and a pass with its number of rewrites: those that clean up, by themselves since
# together one leaves less to the other, and the decompositions, of what the fusions before them leave.
ALONE: list[tuple[str, tuple[type[Pass], ...], type[Pass], int]] = [
    ("bert_eager.dynamo20.dynamic", (), ShapeSimplification, 15),
    ("bert_eager.dynamo20.dynamic", (), ReshapeMerge, 1),
    ("bert_eager.dynamo20.dynamic", (), LengthSharing, 1),
    ("lstm.script14.static", (), ConstantFolding, 10),
    ("lstm.script14.static", (), CommonSubexpressionSharing, 10),
    ("lstm.script14.static", (), IdentityElimination, 2),
    ("lstm.script14.static", (), DeadCodeElimination, 1),
    ("../architectures/gat.script16.dynamic", (), BranchElimination, 4),
    ("../architectures/graph_sage.dynamo24.dynamic", (), RowScatterFusion, 6),
    ("gates/squeeze_excite.script14.static", (), ExpandElimination, 1),
    ("bert_sdpa.dynamo20.static", (ConstantFolding,), IndexGridElimination, 1),
    ("mobilevit.dynamo20.static", (), DivideToMultiply, 1),
    ("squeeze_excite.script14.static", (SwishFusion,), SwishDecomposition, 2),
    ("light/shufflenet", (), BatchNormalizationDecomposition, 49),
    ("case/test_mvn", (), MeanVarianceNormalizationDecomposition, 1),
    ("case/test_attention_4d", (), FunctionDecomposition, 1),
    ("case/test_rotary_embedding", (), RotaryPositionsDecomposition, 1),
    ("case/test_tensorscatter_circular", (), TensorScatterDecomposition, 1),
    ("quantized.ort17.static", (), QuantizationDecomposition, 41),
    ("quantized.ort17.static", (), QuantizedFusion, 28),
    ("codes/squeeze_excite.script14.static", (), ByteTableFusion, 3),
    ("codes/attention_eager.dynamo18.static", (), QuantizedProductFusion, 2),
    ("codes/attention_eager.dynamo18.static", (), QuantizedSoftmaxFusion, 1),
    ("quantized.ort17.static", (), QuantizedMapsFusion, 4),
    ("quantized.ort17.static", (), DequantizedConstantFolding, 12),
    ("int4/linear.script14.static", (), CompressedWeightsFusion, 2),
    ("int4/bert_eager.dynamo20.dynamic", (), CompressedGatherFusion, 3),
    ("case/test_dynamicquantizelinear", (), DynamicQuantizationDecomposition, 1),
    ("case/test_matmulinteger", (), IntegerProductDecomposition, 1),
    ("case/test_qlinearconv", (), QOperatorDecomposition, 1),
    ("light/densenet121", (ConvBatchNormFusion, ConvBiasFusion), LinearSinking, 3),
]
_CLEANING = frozenset(
    ["CommonSubexpressionSharing", "ConstantFolding", "DeadCodeElimination", "IdentityElimination",
     "IndexGridElimination", "LengthSharing", "ReshapeMerge", "ShapeSimplification"]
)  # fmt: skip


def small(name: str) -> Model:
    """A light network on images of 64 x 64 pixels, up to its last pooling: the classifier fixes the image's size."""
    proto = light_model(name)
    graph = proto.graph
    (data,) = [value for value in graph.input if value.name not in {t.name for t in graph.initializer}]
    if any(node.op_type == "Reshape" for node in graph.node):
        return read_model(proto)  # its Reshapes fix the size, too
    for dim in data.type.tensor_type.shape.dim[2:]:
        dim.dim_value = 64
    reductions = ("AveragePool", "GlobalAveragePool")
    last = next(node for node in reversed(graph.node) if node.op_type in reductions)
    kept = list(graph.node)[: [node.output[0] for node in graph.node].index(last.output[0])]
    del graph.node[:]
    graph.node.extend(kept)
    del graph.output[:]
    graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    del graph.value_info[:]
    return read_model(proto)


def read(name: str, load: Callable[[str], Model]) -> Model:
    kind, _, rest = name.rpartition("/")
    if kind == "case":
        proto = SUITE[rest].model
        assert proto is not None
        return read_model(proto)
    if kind == "int4":
        return with_short_weights(load(rest))
    if kind == "seeded":
        return read_model(seeded_network(rest, small=True, decoder=64).model)
    if kind == "codes":
        return with_quantized_activations(load(rest))
    if kind == "bytes":
        return with_prepared_images(load(rest))
    if kind == "gates":
        return with_expanded_gates(load(rest))
    return small(rest) if kind == "light" else load(name)


def with_quantized_activations(model: Model) -> Model:
    """Every Sigmoid between quantizations, and the factors of products of two computed matrices quantized."""
    parameters = Constant(np.float32(0.1)), Constant(np.uint8(128))
    for node in model.ordered_nodes():
        if node.op_type == "MatMul" and not isinstance(node.input_value(1).node, Constant):
            for port in node.inputs:
                codes = ops.QuantizeLinear(port.source_output, *parameters)
                port.replace_source_output(ops.DequantizeLinear(codes, *parameters))
        if node.op_type == "Sigmoid":
            read = ops.DequantizeLinear(ops.QuantizeLinear(node.input_value(0), *parameters), *parameters)
            active = ops.QuantizeLinear(ops.Sigmoid(read), *parameters)
            node.output(0).replace(ops.DequantizeLinear(active, *parameters).output(0))
    return model


def with_prepared_images(model: Model) -> Model:
    """Images in the layout and the order of colours of OpenCV, normalized by the model."""
    return PrePostProcessor(model).input(0, layout="NHWC", colour="BGR").to_colour("RGB").mean(0.4).scale(0.2).build()


def with_expanded_gates(model: Model) -> Model:
    """The gate of each channel is expanded to the map that it scales, as timm writes it."""
    for node in model.ordered_nodes():
        if node.op_type != "Mul":
            continue
        shape = Constant(np.array(node.output(0).shape.get_shape(), np.int64))
        for port in node.inputs:
            if port.source_output.shape != node.output(0).shape:
                port.replace_source_output(ops.Expand(port.source_output, shape))
    return model


def with_short_weights(model: Model) -> Model:
    """The matrices of products and look-ups as integers of 4 bits, with one scale."""
    for node in model.ordered_nodes():
        index = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
        matrix = None if index is None else node.input_value(index).node
        if index is not None and isinstance(matrix, Constant) and matrix.element_type is f32:
            scale = np.abs(matrix.data).max() / 7
            codes = Constant(np.rint(matrix.data / scale).astype(i4.numpy))
            node.input(index).replace_source_output(ops.DequantizeLinear(codes, Constant(scale)))
    return model


def test_every_ready_pass_fires_on_some_network() -> None:
    fired = {name for _, _, counts in CASES for name in counts} | {item.name for _, _, item, _ in ALONE}
    ready = [info for info in list_passes() if info.cls.is_transformation and not issubclass(info.cls, Manager)]
    every = {"ConvertPrecision", "WidenPrecision"}  # change every model of their types
    # In other files.
    elsewhere = {
        "ExpertMatMulFusion", "ExpressionDecomposition", "LastPosition", "MakeAdaptable", "MakeStateful",
        "MaskedCaches", "OperatorDecomposition",
    }  # fmt: skip
    assert {info.name for info in ready} - fired == every | elsewhere


@pytest.mark.parametrize(("name", "enabled", "expected"), CASES, ids=[f"{c[0]}-{len(c[1])}" for c in CASES])
def test_passes_fire_as_often_as_expected(
    name: str,
    enabled: tuple[Any, ...],
    expected: dict[str, int],
    load: Callable[[str], Model],
    feed: Callable[[Model], dict[str, Any]],
) -> None:
    model = read(name, load)
    before = model.clone()
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(*enabled)
    assert manager.run_passes(model)
    counts = Counter({k: v for k, v in manager.rewrite_counts().items() if v and k not in _CLEANING})
    assert counts == expected
    assert not manager.run_passes(model)
    inputs = feed(before)
    check_equivalence(before, model, inputs=inputs)

    (expected_output, *_), (actual, *_) = (_onnxruntime(m, inputs) for m in (before, model))
    scale = np.abs(expected_output).max()
    assert np.abs(expected_output - actual).max() <= 1e-5 * scale


@pytest.mark.parametrize(("name", "first", "item", "count"), ALONE, ids=[f"{c[2].name}-{c[0]}" for c in ALONE])
def test_a_pass_by_itself_fires_as_often_as_expected(
    name: str,
    first: tuple[type[Pass], ...],
    item: type[Pass],
    count: int,
    load: Callable[[str], Model],
    feed: Callable[[Model], dict[str, Any]],
) -> None:
    model = read(name, load)
    before = model.clone()
    manager = Manager(checked=not name.startswith("light/"))
    for kind in (*first, item):
        manager.register_pass(kind)
    assert manager.run_passes(model)
    assert manager.rewrite_counts()[item.name] == count
    inputs = feed(before)
    check_equivalence(before, model, inputs=inputs)
    if name.startswith("quantized") and _saturates():
        return  # its products of u8 and i8 differ from the operators'
    (expected, *_), (actual, *_) = (_onnxruntime(m, inputs) for m in (before, model))
    assert np.abs(expected - actual).max() <= 1e-5 * np.abs(expected).max()


@cache
def _saturates() -> bool:
    """Whether onnxruntime adds two products of u8 and i8 in 16 bits on this CPU, as it does without VNNI."""
    a, b = Parameter(u8, [1, 2], "a"), Constant(np.full((2, 1), 127, np.int8))
    product = Model([Result(ops.MatMulInteger(a, b), "y")], [a])
    return bool(_onnxruntime(product, {"a": np.full((1, 2), 255, np.uint8)})[0] != 2 * 127 * 255)


def _onnxruntime(model: Model, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = model_to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))
