"""Decoders in the form of onnxruntime-genai's model builder, with seeded weights in a file beside the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

_DOMAIN = "com.microsoft"
_BLOCK = 128
_BITS = {"int8": 8, "int4": 4, "int4a8": 4}


@dataclass(frozen=True, slots=True)
class Llama:
    """The sizes of a decoder with rotary embeddings, grouped heads and a gated MLP."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int = 4096

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def multiplied(self) -> int:
        """The weights that each token is multiplied with."""
        kv = self.kv_heads * self.head_size
        layer = self.width * (2 * self.width + 2 * kv) + 3 * self.width * self.inner
        return self.layers * layer + self.width * self.vocabulary

    def weight_bytes(self, form: str) -> float:
        """The bytes of weights that a token reads, scales of blocks as f16."""
        bits = _BITS.get(form)
        each = {"f32": 4.0, "bf16": 2.0}[form] if bits is None else bits / 8 + 2 / _BLOCK
        return self.multiplied * each


MODELS = {
    "tiny": Llama(2, 256, 4, 2, 512, 1000),
    "llama300m": Llama(24, 1024, 16, 4, 2816, 32000),
    "llama1b": Llama(22, 2048, 32, 4, 5632, 32000),
}


def write_model(model: Llama, form: str, folder: Path, *, has_positions: bool = False) -> Path:
    """Write `model.onnx`, its weights and `genai_config.json`; form: f32, int8, int4, or int4a8 with 8-bit activations.

    A model in bf16 is the one in f32, which the engines round. With `has_positions`, attention is that of ONNX, with
    the inputs that exports of transformers have, so that sequences of a batch may have different positions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.onnx.data").open("wb") as data:
        proto = (_PositionsWriter if has_positions else _Writer)(model, form, data).proto()
    onnx.save(proto, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(_config(model)))
    return folder / "model.onnx"


class _Writer:
    def __init__(self, model: Llama, form: str, data: Any) -> None:
        self.model, self.form, self.data = model, form, data
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    opset = 17

    def lengths(self) -> None:
        """What the attentions of all layers read besides the caches of cosines and sines."""
        one = self.tensor("one", np.array([1], np.int64))
        counted = self.node("ReduceSum", f"attention_mask {one}", "counted", keepdims=1)
        self.node("Cast", self.node("Sub", f"{counted} {one}", "last"), "seqlens_k", to=TensorProto.INT32)
        shape = self.node("Shape", "attention_mask", "mask_shape")
        length = self.node("Gather", f"{shape} {self.tensor('axis', np.array(1, np.int64))}", "length", axis=0)
        self.node("Cast", length, "total", to=TensorProto.INT32)

    def attention(self, n: str, q: str, k: str, v: str, past: str, present: str) -> str:
        m = self.model
        return self.node(
            "GroupQueryAttention",
            f"{q} {k} {v} {past} seqlens_k total cos_cache sin_cache",
            f"{n}.attention {present}",
            _DOMAIN, num_heads=m.heads, kv_num_heads=m.kv_heads, do_rotary=1, scale=m.head_size**-0.5,
        )  # fmt: skip

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs besides the past."""
        return [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]

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
        self.node("SkipSimplifiedLayerNormalization", inputs, f"{name} - - {name}.sum", _DOMAIN, epsilon=1e-5)
        return name, f"{name}.sum"

    def product(self, x: str, name: str, rows: int, columns: int) -> str:
        """A product whose weights keep the scale of `x`."""
        bits = _BITS.get(self.form)
        if bits is None:
            return self.node("MatMul", f"{x} {self.tensor(f'{name}.weight', self.normal((rows, columns), rows))}", name)
        codes = self.random.integers(0, 256, (columns, rows // _BLOCK, _BLOCK * bits // 8), np.uint8)
        step = 12**0.5 / (1 << bits) / rows**0.5
        scales = (step * self.random.uniform(0.8, 1.2, columns * rows // _BLOCK)).astype(np.float32)
        weights = f"{self.tensor(f'{name}.codes', codes)} {self.tensor(f'{name}.scales', scales)}"
        level = 4 if self.form == "int4a8" else 0
        return self.node(
            "MatMulNBits", f"{x} {weights}", name, _DOMAIN,
            K=rows, N=columns, bits=bits, block_size=_BLOCK, accuracy_level=level,
        )  # fmt: skip

    def normal(self, shape: tuple[int, int], rows: float) -> Callable[[], Iterator[np.ndarray]]:
        """Rows of a matrix, a few at a time; `shape` is that of the result."""

        def parts() -> Iterator[np.ndarray]:
            for start in range(0, shape[0], 1024):
                size = (min(1024, shape[0] - start), shape[1])
                yield self.random.standard_normal(size, np.float32) / np.float32(rows**0.5)

        parts.shape = shape  # type: ignore[attr-defined]
        return parts

    def scales(self, name: str) -> str:
        return self.tensor(name, self.random.uniform(0.8, 1.2, self.model.width).astype(np.float32))

    def node(self, op_type: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; `-` in the names is an omitted value. Returns the name of its first output."""
        names = [["" if name == "-" else name for name in each.split()] for each in (inputs, outputs)]
        self.nodes.append(helper.make_node(op_type, *names, f"node_{names[1][0]}", domain=domain, **attributes))
        return names[1][0]

    def tensor(self, name: str, value: Any) -> str:
        """Add an initializer; its data is written to the file beside the model, unless it is small."""
        parts = [value] if isinstance(value, np.ndarray) else value()
        shape = value.shape
        proto = onnx.TensorProto(name=name, dims=shape)
        if isinstance(value, np.ndarray):
            proto.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
            if value.nbytes < 1024:
                proto.raw_data = value.tobytes()
                self.tensors.append(proto)
                return name
        else:
            proto.data_type = TensorProto.FLOAT
        self.data.seek((-self.data.tell()) % 4096, 1)
        start = self.data.tell()
        for part in parts:
            self.data.write(np.ascontiguousarray(part).tobytes())
        proto.data_location = TensorProto.EXTERNAL
        described = {"location": "model.onnx.data", "offset": start, "length": self.data.tell() - start}
        for key, text in described.items():
            proto.external_data.add(key=key, value=str(text))
        self.tensors.append(proto)
        return name

    def finished(self) -> onnx.ModelProto:
        m = self.model

        def caches(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = ["batch", m.kv_heads, length, m.head_size]
            names = [f"{prefix}.{i}.{part}" for i in range(m.layers) for part in ("key", "value")]
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

        inputs = [*self.inputs(), *caches("past_key_values", "past")]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", m.vocabulary])
        graph = helper.make_graph(self.nodes, "decoder", inputs, [logits, *caches("present", "total")], self.tensors)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(_DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


class _PositionsWriter(_Writer):
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


def _config(m: Llama) -> dict[str, Any]:
    """The configuration that onnxruntime-genai reads."""
    return {
        "model": {
            "bos_token_id": 1,
            "eos_token_id": m.vocabulary - 1,
            "pad_token_id": 0,
            "context_length": m.positions,
            "type": "llama",
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
