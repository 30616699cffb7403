"""Subgraphs from real exporters become the canonical operators. If it fails, networks run in pieces, and slowly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine.ir import Model
from engine.onnx import model_to_proto, read_model
from engine.passes import Manager, check_equivalence
from engine.passes.common.attention_fusion import RelaxedAttentionFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.einsum_decomposition import EinsumDecomposition

EXPORTS = Path(__file__).parents[2] / "fixtures" / "exports"
NAMES = sorted(path.name.removesuffix(".onnx") for path in EXPORTS.glob("*.onnx"))

# For each layer, whatever exported it and at whatever opset: how often each canonical operator is there afterwards,
# and which operators are not.
EXPECTED: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "attention_eager": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose")),
    "attention_einsum": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose", "Einsum")),
    "attention_sdpa": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose")),
    "attention_boolean": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose", "IsNaN")),
    "attention_causal": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose", "Where")),
    "attention_windows": ({"Attention": 1}, ("Softmax", "Reshape", "Transpose")),
    "layer_norm": ({"LayerNormalization": 1}, ("ReduceMean", "Sqrt")),
    "rms_norm": ({"RMSNormalization": 1}, ("ReduceMean", "Sqrt", "Cast")),
    "rms_norm_half": ({"RMSNormalization": 1, "Cast": 2}, ("ReduceMean", "Sqrt")),
    "rms_norm_module": ({"RMSNormalization": 1}, ("ReduceMean", "Sqrt")),
    "group_norm": ({"GroupNormalization": 1}, ("InstanceNormalization", "Reshape")),
    "gelu_erf": ({"Gelu": 1}, ("Erf", "Mul")),
    "gelu_tanh": ({"Gelu": 1}, ("Tanh", "Mul")),
    "gelu_new": ({"Gelu": 1}, ("Tanh", "Mul")),
    "silu": ({"Swish": 1}, ("Sigmoid", "Mul")),
    "mish": ({"Mish": 1}, ("Softplus", "Mul")),
    "hard_swish": ({"HardSwish": 1}, ("HardSigmoid", "Mul")),
    "hard_swish_spelled": ({"HardSwish": 1}, ("Clip", "Div", "Mul")),
    "linear": ({"Gemm": 1}, ("MatMul", "Add")),
    "pad_conv": ({"Conv": 1}, ("Pad",)),
    "channels_last_head": ({"Conv": 2, "Softmax": 1}, ("Transpose",)),
    "quantized": ({"Conv": 11, "Gemm": 1, "DequantizeLinear": 40, "QuantizeLinear": 16}, ()),
    "quantized_head": ({"Conv": 2, "DequantizeLinear": 8, "QuantizeLinear": 4}, ("Transpose",)),
    "pooled_head": ({"Conv": 1, "Swish": 1, "GlobalAveragePool": 1}, ("AveragePool", "Sigmoid")),
    "lstm": ({"LSTM": 1}, ("Concat", "Slice", "Unsqueeze")),
    "rotary": ({"RotaryEmbedding": 1}, ("Neg",)),
    "squeeze_excite": ({"Conv": 3, "Swish": 2, "Sigmoid": 1}, ()),
    "convnext": ({"LayerNormalization": 5, "Gelu": 3}, ("Erf", "Div")),
    "mobilenet": ({"Conv": 11}, ("BatchNormalization",)),
    "bert_eager": ({"Attention": 2, "Gelu": 2, "LayerNormalization": 5}, ("Softmax", "Erf")),
    "bert_sdpa": ({"Attention": 2, "Gelu": 2, "LayerNormalization": 5}, ("Softmax", "Erf", "IsNaN")),
    "distilbert_eager": ({"Attention": 1, "Gelu": 1, "LayerNormalization": 3}, ("Softmax", "Erf")),
    "distilbert_sdpa": ({"Attention": 1, "Gelu": 1, "LayerNormalization": 3}, ("Softmax", "Erf", "IsNaN")),
    "gpt2_eager": ({"Attention": 1, "Gelu": 1, "LayerNormalization": 3}, ("Softmax", "Tanh")),
    "gpt2_sdpa": ({"Attention": 1, "Gelu": 1, "LayerNormalization": 3}, ("Softmax", "Tanh", "IsNaN")),
    "llama_eager": ({"Attention": 1, "RMSNormalization": 3, "RotaryEmbedding": 2, "Swish": 1}, ("Softmax", "Neg")),
    "llama_sdpa": ({"Attention": 1, "RMSNormalization": 3, "RotaryEmbedding": 2, "Swish": 1}, ("Softmax", "Neg")),
    "vit_eager": ({"Attention": 2, "Gelu": 2, "LayerNormalization": 5}, ("Softmax", "Erf")),
    "vit_sdpa": ({"Attention": 2, "Gelu": 2, "LayerNormalization": 5}, ("Softmax", "Erf", "IsNaN")),
    "t5": ({"Attention": 1, "RMSNormalization": 3}, ("Softmax", "ReduceMean")),
    "segformer": ({"Attention": 2, "Gelu": 2}, ("Softmax",)),
    "whisper": ({"Attention": 1, "Gelu": 3}, ("Softmax", "Reshape")),
    "mobilevit": ({"Attention": 1, "Swish": 1}, ("Softmax", "Sigmoid", "Reshape")),
}


def optimize(model: Model, *enabled: Any) -> Manager:
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(*enabled)
    manager.run_passes(model)
    return manager


def test_every_layer_of_the_table_is_there() -> None:
    assert {name.partition(".")[0] for name in NAMES} == set(EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_export_is_recognised_and_computes_the_same(
    name: str,
    load: Callable[[str], Model],
    count: Callable[[Model], Counter[str]],
    feed: Callable[[Model], dict[str, Any]],
) -> None:
    model = load(name)
    original = model.clone()
    manager = optimize(model, RelaxedAttentionFusion, EinsumDecomposition)
    present, absent = EXPECTED[name.partition(".")[0]]
    operators = count(model)
    assert {op: operators[op] for op in present} == present
    assert {op for op in absent if operators[op]} == set()
    assert not manager.run_passes(model), manager.rewrite_counts()
    check_equivalence(original, model, inputs=feed(original), rtol=2e-3 if "half" in name else None)


@pytest.mark.parametrize("name", [name for name in NAMES if ".dynamo20." in name])
def test_onnxruntime_runs_what_comes_out(
    name: str, load: Callable[[str], Model], feed: Callable[[Model], dict[str, Any]]
) -> None:
    model = load(name)
    inputs = feed(model)
    optimize(model, RelaxedAttentionFusion, EinsumDecomposition)
    expected = _run(str(EXPORTS / f"{name}.onnx"), inputs)
    actual = _run(model_to_proto(model).SerializeToString(), inputs)
    for x, y in zip(expected, actual, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-3 if "half" in name else 1e-5, rtol=1e-4)


def test_written_and_read_again_it_is_recognised_no_further() -> None:
    model = read_model(EXPORTS / "bert_sdpa.dynamo20.static.onnx")
    optimize(model, RelaxedAttentionFusion, EinsumDecomposition)
    again = read_model(model_to_proto(model))
    assert not optimize(again, RelaxedAttentionFusion).records[0].changed


def _run(model: str | bytes, inputs: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))
