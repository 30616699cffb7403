"""`ModelWriter`: decoders as ONNX, with seeded weights in a file beside the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import TensorProto, helper

DOMAIN = "com.microsoft"
BLOCK = 128
"""The weights of 8 or 4 bits that share a scale."""
BITS = {"int8": 8, "int4": 4, "int4a8": 4}


@dataclass(frozen=True, slots=True)
class Decoder:
    """The sizes of a decoder."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    positions: int

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def multiplied(self) -> int:
        """The weights that each token is multiplied with."""
        raise NotImplementedError

    def read_bytes(self, form: str) -> float:
        """The bytes of weights that a token reads, scales of blocks as f16."""
        bits = BITS.get(form)
        each = {"f32": 4.0, "bf16": 2.0}[form] if bits is None else bits / 8 + 2 / BLOCK
        return self.multiplied * each

    def cache_bytes(self, positions: int) -> int:
        """The bytes of keys and values of this many positions, in f32."""
        return 2 * 4 * self.layers * self.kv_heads * self.head_size * positions


class ModelWriter(ABC):
    """Writes one model; `form`: f32, int8, int4, or int4a8 with 8-bit activations."""

    opset: ClassVar = 17

    def __init__(self, model: Any, form: str, data: Any) -> None:
        self.model, self.form, self.data = model, form, data
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    @abstractmethod
    def proto(self) -> onnx.ModelProto:
        """The model."""

    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs other than the past."""
        return [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]

    def lengths(self) -> None:
        """The inputs of all layers' attentions other than keys, values and positions."""
        one = self.tensor("one", np.array([1], np.int64))
        counted = self.node("ReduceSum", f"attention_mask {one}", "counted", keepdims=1)
        self.node("Cast", self.node("Sub", f"{counted} {one}", "last"), "seqlens_k", to=TensorProto.INT32)
        shape = self.node("Shape", "attention_mask", "mask_shape")
        length = self.node("Gather", f"{shape} {self.tensor('axis', np.array(1, np.int64))}", "length", axis=0)
        self.node("Cast", length, "total", to=TensorProto.INT32)

    def product(self, x: str, name: str, rows: int, columns: int) -> str:
        """A product whose weights keep the scale of `x`."""
        bits = BITS.get(self.form)
        if bits is None:
            return self.node("MatMul", f"{x} {self.tensor(f'{name}.weight', self.normal((rows, columns), rows))}", name)
        codes = self.random.integers(0, 256, (columns, rows // BLOCK, BLOCK * bits // 8), np.uint8)
        step = 12**0.5 / (1 << bits) / rows**0.5
        scales = (step * self.random.uniform(0.8, 1.2, columns * rows // BLOCK)).astype(np.float32)
        weights = f"{self.tensor(f'{name}.codes', codes)} {self.tensor(f'{name}.scales', scales)}"
        level = 4 if self.form == "int4a8" else 0
        return self.node(
            "MatMulNBits", f"{x} {weights}", name, DOMAIN,
            K=rows, N=columns, bits=bits, block_size=BLOCK, accuracy_level=level,
        )  # fmt: skip

    def normal(self, shape: tuple[int, int], rows: float) -> Callable[[], Iterator[np.ndarray]]:
        """Rows of a matrix, a few at a time; `shape` is the result's."""

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
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)
