"""Llama-like decoders: rotary embeddings, grouped heads, RMS normalization and a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from generating.writer import DOMAIN, Decoder, ModelWriter


@dataclass(frozen=True, slots=True)
class Llama(Decoder):
    """The sizes of a decoder with rotary embeddings, grouped heads and a gated MLP."""

    positions: int = 4096

    @property
    def multiplied(self) -> int:
        kv = self.kv_heads * self.head_size
        layer = self.width * (2 * self.width + 2 * kv) + 3 * self.width * self.inner
        return self.layers * layer + self.width * self.vocabulary


class LlamaWriter(ModelWriter):
    """In the form of onnxruntime-genai's model builder."""

    def attention(self, n: str, q: str, k: str, v: str, past: str, present: str) -> str:
        m = self.model
        return self.node(
            "GroupQueryAttention",
            f"{q} {k} {v} {past} seqlens_k total cos_cache sin_cache",
            f"{n}.attention {present}",
            DOMAIN, num_heads=m.heads, kv_num_heads=m.kv_heads, do_rotary=1, scale=m.head_size**-0.5,
        )  # fmt: skip

    def proto(self) -> onnx.ModelProto:
        m = self.model
        self.lengths()
        angles = np.outer(np.arange(m.positions), 10000.0 ** -np.linspace(0, 1, m.head_size // 2, endpoint=False))
        self.tensor("cos_cache", np.cos(angles).astype(np.float32))
        self.tensor("sin_cache", np.sin(angles).astype(np.float32))
        table = self.tensor("embeddings", self.normal((m.vocabulary, m.width), 1.0))
        residual = self.node("Gather", f"{table} input_ids", "embedded", axis=0)
        x = self.node(
            "SimplifiedLayerNormalization", f"{residual} {self.scales('first.weight')}", "first",
            axis=-1, epsilon=1e-5, stash_type=1,
        )  # fmt: skip
        for index in range(m.layers):
            x, residual = self.layer(index, x, residual)
        self.product(x, "logits", m.width, m.vocabulary)
        return self.finished()

    def layer(self, index: int, x: str, residual: str) -> tuple[str, str]:
        m, n = self.model, f"layer{index}"
        kv = m.kv_heads * m.head_size
        q, k, v = (self.product(x, f"{n}.{part}", m.width, w) for part, w in (("q", m.width), ("k", kv), ("v", kv)))
        past = " ".join(f"past_key_values.{index}.{part}" for part in ("key", "value"))
        present = " ".join(f"present.{index}.{part}" for part in ("key", "value"))
        attended = self.product(self.attention(n, q, k, v, past, present), f"{n}.o", m.width, m.width)
        y, total = self.normalized(residual, attended, f"{n}.middle")
        gate, up = (self.product(y, f"{n}.{part}", m.width, m.inner) for part in ("gate", "up"))
        gated = self.node("Mul", f"{gate} {self.node('Sigmoid', gate, f'{n}.sigmoid')}", f"{n}.silu")
        inner = self.node("Mul", f"{gated} {up}", f"{n}.inner")
        return self.normalized(total, self.product(inner, f"{n}.down", m.inner, m.width), f"{n}.end")

    def normalized(self, residual: str, x: str, name: str) -> tuple[str, str]:
        inputs = f"{residual} {x} {self.scales(f'{name}.weight')}"
        self.node("SkipSimplifiedLayerNormalization", inputs, f"{name} - - {name}.sum", DOMAIN, epsilon=1e-5)
        return name, f"{name}.sum"


class PositionsWriter(LlamaWriter):
    opset = 23

    def lengths(self) -> None:
        visible = self.node("Cast", "attention_mask", "visible", to=TensorProto.BOOL)
        self.node("Unsqueeze", f"{visible} {self.tensor('axes', np.array([1, 2], np.int64))}", "mask")
        for name, heads in (("q", self.model.heads), ("kv", self.model.kv_heads)):
            self.tensor(f"{name}_heads", np.array([0, 0, heads, self.model.head_size], np.int64))
        self.tensor("joined", np.array([0, 0, self.model.width], np.int64))

    def attention(self, n: str, q: str, k: str, v: str, past: str, present: str) -> str:
        parts = []
        for part, value, heads in (("q", q, "q_heads"), ("k", k, "kv_heads"), ("v", v, "kv_heads")):
            split = self.node("Reshape", f"{value} {heads}", f"{n}.{part}.split")
            parts.append(self.node("Transpose", split, f"{n}.{part}.turned", perm=(0, 2, 1, 3)))
        turned = [
            self.node("RotaryEmbedding", f"{x} cos_cache sin_cache position_ids", f"{x}.rotary") for x in parts[:2]
        ]
        outputs = f"{n}.attended {present}"
        attended = self.node("Attention", f"{' '.join(turned)} {parts[2]} mask {past}", outputs, is_causal=1)
        joined = self.node("Transpose", attended, f"{n}.together", perm=(0, 2, 1, 3))
        return self.node("Reshape", f"{joined} joined", f"{n}.attention")

    def inputs(self) -> list[onnx.ValueInfoProto]:
        positions = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "sequence"])
        return [*super().inputs(), positions]
