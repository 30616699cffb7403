"""The common optimizations on whole networks: how often each pass fires, and that nothing else changes.

If a count falls, a form that exporters emit is recognised no longer; if results differ, users get wrong answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.ir import Model
from engine.onnx import model_to_proto, read_model
from engine.passes import Manager, check_equivalence
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import RelaxedAttentionFusion
from engine.passes.common.channels_first_sinking import ChannelsFirstSinking
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.residual_fusion import ResidualFusion
from engine.testing.models import light_model

INTERNAL = (MatMulBiasFusion, ActivationFusion, ResidualFusion)


def attention(layers: int, name: str = "AttentionFusion") -> dict[str, int]:
    """What fires on the attention of each layer of a transformer."""
    return {name: layers, "AttentionHeadsFusion": layers, "QKVProjectionFusion": layers}


# Network, what is enabled beside the defaults, and how often the passes fire: all that do, but for the folding and
# cleaning ones, whose numbers say little.
CASES: list[tuple[str, tuple[Any, ...], dict[str, int]]] = [
    ("light/squeezenet", INTERNAL, {"ActivationFusion": 26}),
    ("light/shufflenet", INTERNAL, {"ActivationFusion": 17, "ConvBatchNormFusion": 49}),
    (
        "light/inception_v2",
        INTERNAL,
        {"ActivationFusion": 69, "ConvBatchNormFusion": 69, "ConvBiasFusion": 69, "ConvMultiplyFusion": 69},
    ),
    ("mobilenet.script14.static", INTERNAL, {"ActivationFusion": 8, "ResidualFusion": 2}),
    ("mobilenet.dynamo20.static", INTERNAL, {"ActivationFusion": 8, "ResidualFusion": 2}),
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
    ("vit_eager.dynamo20.static", (), {**attention(2), "MaskSimplification": 2}),
    ("gpt2_eager.dynamo20.static", (), {"AttentionFusion": 1, "AttentionHeadsFusion": 1, "GeluTanhFusion": 1}),
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
    ("mobilevit.dynamo20.static", (), {**attention(1), "SwishFusion": 1}),
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
]
_CLEANING = frozenset(
    ["CommonSubexpressionSharing", "ConstantFolding", "DeadCodeElimination", "IdentityElimination", "ReshapeMerge",
     "ShapeSimplification"]
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


@pytest.mark.parametrize(("name", "enabled", "expected"), CASES, ids=[f"{c[0]}-{len(c[1])}" for c in CASES])
def test_passes_fire_as_often_as_expected(
    name: str,
    enabled: tuple[Any, ...],
    expected: dict[str, int],
    load: Callable[[str], Model],
    feed: Callable[[Model], dict[str, Any]],
) -> None:
    model = small(name.removeprefix("light/")) if name.startswith("light/") else load(name)
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


def _onnxruntime(model: Model, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = model_to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))
