"""GPT-2: learned positions, layer normalization, and an MLP with the tanh form of GELU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from generating.writer import DOMAIN, Decoder, ModelWriter


@dataclass(frozen=True, slots=True)
class Gpt2(Decoder):
    """The sizes of GPT-2. The logits do not share the embeddings' weights, as in many exported models."""

    positions: int = 1024

    @property
    def multiplied(self) -> int:
        return self.layers * self.width * (4 * self.width + 2 * self.inner) + self.width * self.vocabulary


class Gpt2Writer(ModelWriter):
    """With GroupQueryAttention, so that onnxruntime also appends to keys and values in place."""

    opset = 20

    def proto(self) -> onnx.ModelProto:
        m = self.model
        self.lengths()
        table = self.tensor("embeddings", self.normal((m.vocabulary, m.width), 4.0))
        places = self.tensor("positions", self.normal((m.positions, m.width), 4.0))
        tokens = self.node("Gather", f"{table} input_ids", "tokens", axis=0)
        x = self.node("Add", f"{tokens} {self.node('Gather', f'{places} position_ids', 'places', axis=0)}", "embedded")
        for index in range(m.layers):
            x = self.layer(index, x)
        self.product(self.normalized(x, "end"), "logits", m.width, m.vocabulary)
        return self.finished()

    def layer(self, index: int, x: str) -> str:
        m, n = self.model, f"layer{index}"
        joined = self.dense(self.normalized(x, f"{n}.first"), f"{n}.qkv", m.width, 3 * m.width)
        self.node("Split", joined, f"{n}.q {n}.k {n}.v", axis=-1, num_outputs=3)
        past = " ".join(f"past_key_values.{index}.{part}" for part in ("key", "value"))
        present = " ".join(f"present.{index}.{part}" for part in ("key", "value"))
        attended = self.node(
            "GroupQueryAttention",
            f"{n}.q {n}.k {n}.v {past} seqlens_k total",
            f"{n}.attention {present}",
            DOMAIN, num_heads=m.heads, kv_num_heads=m.kv_heads, scale=m.head_size**-0.5,
        )  # fmt: skip
        x = self.node("Add", f"{x} {self.dense(attended, f'{n}.o', m.width, m.width)}", f"{n}.middle")
        inner = self.dense(self.normalized(x, f"{n}.second"), f"{n}.up", m.width, m.inner)
        inner = self.node("Gelu", inner, f"{n}.gelu", approximate="tanh")
        return self.node("Add", f"{x} {self.dense(inner, f'{n}.down', m.inner, m.width)}", f"{n}.sum")

    def normalized(self, x: str, name: str) -> str:
        parameters = f"{self.scales(f'{name}.weight')} {self.bias(f'{name}.bias', self.model.width)}"
        return self.node("LayerNormalization", f"{x} {parameters}", name, axis=-1, epsilon=1e-5)

    def dense(self, x: str, name: str, rows: int, columns: int) -> str:
        """A product and a bias."""
        product = self.product(x, f"{name}.product", rows, columns)
        return self.node("Add", f"{product} {self.bias(f'{name}.bias', columns)}", name)

    def bias(self, name: str, length: int) -> str:
        return self.tensor(name, self.random.uniform(-0.1, 0.1, length).astype(np.float32))

    def inputs(self) -> list[onnx.ValueInfoProto]:
        positions = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "sequence"])
        return [*super().inputs(), positions]
