"""Decoders by name, with seeded weights in a file beside the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from generating.gpt2 import Gpt2, Gpt2Writer
from generating.llama import Llama, LlamaWriter, PositionsWriter
from generating.writer import Decoder

MODELS: dict[str, Decoder] = {
    "tiny": Llama(2, 256, 4, 2, 512, 1000),
    "llama300m": Llama(24, 1024, 16, 4, 2816, 32000),
    "llama1b": Llama(22, 2048, 32, 4, 5632, 32000),
    "tinygpt2": Gpt2(2, 256, 4, 4, 1024, 1000),
    "gpt2": Gpt2(12, 768, 12, 12, 3072, 50257),
}


def write_model(model: Decoder, form: str, folder: Path, *, has_positions: bool = False) -> Path:
    """Write `model.onnx`, its weights and `genai_config.json`; form: f32, int8, int4, or int4a8 with 8-bit activations.

    A model in bf16 is the one in f32, which the engines round. With `has_positions`, attention is ONNX's, with the
    inputs that exports of transformers have, so that sequences of a batch may have different positions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = Gpt2Writer if isinstance(model, Gpt2) else PositionsWriter if has_positions else LlamaWriter
    with (folder / "model.onnx.data").open("wb") as data:
        proto = writer(model, form, data).proto()
    onnx.save(proto, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(_config(model)))
    return folder / "model.onnx"


def _config(m: Decoder) -> dict[str, Any]:
    """The configuration that onnxruntime-genai reads."""
    return {
        "model": {
            "bos_token_id": 1,
            "eos_token_id": m.vocabulary - 1,
            "pad_token_id": 0,
            "context_length": m.positions,
            "type": "llama",  # determines the inputs of the model, not its results
            "vocab_size": m.vocabulary,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": m.head_size,
                "hidden_size": m.width,
                "num_attention_heads": m.heads,
                "num_hidden_layers": m.layers,
                "num_key_value_heads": m.kv_heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"do_sample": False, "max_length": m.positions, "past_present_share_buffer": True},
    }
