"""The same models in the form in which OpenVINO's exporter (optimum-intel) writes them.

OpenVINO fuses a cache with its attention only in this form: variables whose rows `beam_idx` selects, in front of
ScaledDotProductAttention. It does not in a file with GroupQueryAttention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
from onnx import numpy_helper
from openvino import Type, opset13
from openvino.op.util import VariableInfo

from generating.llama import Llama
from generating.writer import BITS, BLOCK

Value = Any
"""A node or an output of openvino."""


def write_openvino(model: Llama, source: Path, form: str, path: Path) -> None:
    """Write the Llama-like model of the ONNX file `source` as OpenVINO's IR."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exporter = _Exporter(model, source, BITS.get(form))  # kept: constants share the memory of its file
    openvino.save_model(exporter.model(), path, compress_to_fp16=False)


class _Exporter:
    def __init__(self, model: Llama, source: Path, bits: int | None) -> None:
        self.sizes, self.bits = model, bits
        proto = onnx.load(source, load_external_data=False)
        self.tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.data = np.memmap(source.with_suffix(".onnx.data"), np.uint8, "r")
        self.sinks: list[Any] = []
        self.variables: list[Any] = []
        self.ids = _parameter("input_ids", Type.i64, [-1, -1])
        self.mask = _parameter("attention_mask", Type.i64, [-1, -1])
        self.positions = _parameter("position_ids", Type.i64, [-1, -1])
        self.beams = _parameter("beam_idx", Type.i32, [-1])

    def model(self) -> openvino.Model:
        m = self.sizes
        residual: Value = opset13.gather(_constant(self.array("embeddings")), self.ids, _ints(0))
        self.batch = opset13.gather(opset13.shape_of(self.ids), _ints([0]), _ints(0))
        visible, turns = self.visible(), self.turns()
        x = self.normalized(residual, "first")
        for index in range(m.layers):
            n = f"layer{index}"
            attended = self.product(self.attention(x, index, visible, turns), f"{n}.o", m.width, m.width)
            residual = opset13.add(residual, attended)
            y = self.normalized(residual, f"{n}.middle")
            gate, up = (self.product(y, f"{n}.{part}", m.width, m.inner) for part in ("gate", "up"))
            inner = self.product(opset13.multiply(opset13.swish(gate), up), f"{n}.down", m.inner, m.width)
            residual = opset13.add(residual, inner)
            x = self.normalized(residual, f"{n}.end")
        logits = self.product(x, "logits", m.width, m.vocabulary)
        logits.output(0).set_names({"logits"})
        inputs = [self.ids, self.mask, self.positions, self.beams]
        return openvino.Model([opset13.result(logits)], self.sinks, inputs, self.variables, "decoder")

    def visible(self) -> Value:
        """0 for the keys up to each query's position and the smallest number for the others, [batch, 1, S, T]."""
        keys = opset13.gather(opset13.shape_of(self.mask), _ints(1), _ints(0))
        key = opset13.range(_ints(0), keys, _ints(1), Type.i64)
        seen = opset13.less_equal(key, opset13.unsqueeze(self.positions, _ints([1, 3])))
        present = opset13.unsqueeze(opset13.convert(self.mask, Type.boolean), _ints([1, 2]))
        least = _constant(np.array(np.finfo(np.float32).min, np.float32))
        return opset13.select(opset13.logical_and(seen, present), _constant(np.zeros((), np.float32)), least)

    def turns(self) -> tuple[Value, Value]:
        """The cosines and sines of the positions, [batch, 1, S, head size]."""
        size = self.sizes.head_size
        rates = (10000.0 ** -np.linspace(0, 1, size // 2, endpoint=False)).astype(np.float32)
        positions = opset13.unsqueeze(opset13.convert(self.positions, Type.f32), _ints([1, 3]))
        half = opset13.multiply(positions, _constant(rates.reshape(1, 1, 1, -1)))
        angles = opset13.concat([half, half], -1)
        return opset13.cos(angles), opset13.sin(angles)

    def attention(self, x: Value, index: int, visible: Value, turns: tuple[Value, Value]) -> Value:
        m, n = self.sizes, f"layer{index}"
        kv = m.kv_heads * m.head_size
        q = self.rotated(self.heads(x, f"{n}.q", m.width), turns)
        k = self.cached(self.rotated(self.heads(x, f"{n}.k", kv), turns), f"{index}.key")
        v = self.cached(self.heads(x, f"{n}.v", kv), f"{index}.value")
        scale = _constant(np.array(m.head_size**-0.5, np.float32))
        attended = opset13.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), visible, scale)
        joined = opset13.transpose(attended, _ints([0, 2, 1, 3]))
        return opset13.reshape(joined, _ints([0, 0, m.width]), True)

    def heads(self, x: Value, name: str, width: int) -> Value:
        split = _ints([0, 0, width // self.sizes.head_size, self.sizes.head_size])
        divided = opset13.reshape(self.product(x, name, self.sizes.width, width), split, True)
        return opset13.transpose(divided, _ints([0, 2, 1, 3]))

    def rotated(self, x: Value, turns: tuple[Value, Value]) -> Value:
        half, size = self.sizes.head_size // 2, self.sizes.head_size
        left = opset13.slice(x, _ints([0]), _ints([half]), _ints([1]), _ints([3]))
        right = opset13.slice(x, _ints([half]), _ints([size]), _ints([1]), _ints([3]))
        minus = opset13.multiply(right, _constant(np.array(-1, np.float32)))
        turned = opset13.concat([minus, left], -1)
        return opset13.add(opset13.multiply(x, turns[0]), opset13.multiply(turned, turns[1]))

    def cached(self, new: Value, name: str) -> Value:
        m = self.sizes
        info = VariableInfo()
        info.data_shape = openvino.PartialShape([-1, m.kv_heads, -1, m.head_size])
        info.data_type = Type.f32
        info.variable_id = f"past_key_values.{name}present.{name}"
        variable = openvino.op.util.Variable(info)
        shape = opset13.concat([self.batch, _ints([m.kv_heads]), _ints([0]), _ints([m.head_size])], 0)
        empty = opset13.broadcast(_constant(np.zeros((), np.float32)), shape)
        past = opset13.gather(openvino.op.read_value(empty, variable), self.beams, _ints(0))
        whole = opset13.concat([past, new], 2)
        self.sinks.append(openvino.op.assign(whole, variable))
        self.variables.append(variable)
        return whole

    def repeated(self, x: Value) -> Value:
        """Heads of keys or values, repeated for the heads of queries that share them."""
        m = self.sizes
        shape = opset13.shape_of(x)
        length = opset13.gather(shape, _ints([2]), _ints(0))
        times = _ints([m.heads // m.kv_heads])
        sizes = opset13.concat([self.batch, _ints([m.kv_heads]), times, length, _ints([m.head_size])], 0)
        spread = opset13.broadcast(opset13.unsqueeze(x, _ints([2])), sizes, broadcast_spec="BIDIRECTIONAL")
        return opset13.reshape(spread, _ints([0, m.heads, -1, m.head_size]), True)

    def normalized(self, x: Value, name: str) -> Value:
        mean = opset13.reduce_mean(opset13.power(x, _constant(np.array(2, np.float32))), _ints([-1]), True)
        root = opset13.sqrt(opset13.add(mean, _constant(np.array(1e-5, np.float32))))
        scaled = opset13.multiply(x, opset13.divide(_constant(np.array(1, np.float32)), root))
        return opset13.multiply(_constant(self.array(f"{name}.weight")), scaled)

    def product(self, x: Value, name: str, rows: int, columns: int) -> Value:
        return opset13.matmul(x, self.weights(name, rows, columns), False, True)

    def weights(self, name: str, rows: int, columns: int) -> Value:
        """[columns, rows]; weights of few bits as nncf compresses them, with scales of f16."""
        if self.bits is None:
            return _constant(self.array(f"{name}.weight").T)
        shape = [columns, rows // BLOCK, BLOCK]
        kind = Type.u4 if self.bits == 4 else Type.u8
        codes = opset13.constant(openvino.Tensor(self.array(f"{name}.codes").reshape(-1), shape, kind))
        middle = np.array(1 << (self.bits - 1), np.uint8)
        zero = opset13.convert(opset13.constant(middle.reshape(1, 1, 1), kind), Type.f16)
        scale = _constant(self.array(f"{name}.scales").astype(np.float16).reshape(columns, -1, 1))
        whole = opset13.multiply(opset13.subtract(opset13.convert(codes, Type.f16), zero), scale)
        return opset13.convert(opset13.reshape(whole, _ints([columns, rows]), False), Type.f32)

    def array(self, name: str) -> np.ndarray:
        tensor = self.tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        place = {entry.key: entry.value for entry in tensor.external_data}
        start, length = int(place["offset"]), int(place["length"])
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.asarray(self.data[start : start + length]).view(kind).reshape(tuple(tensor.dims))


def _parameter(name: str, kind: Type, shape: list[int]) -> Any:
    made = opset13.parameter(shape, kind, name)
    made.output(0).set_names({name})
    return made


def _constant(values: np.ndarray) -> Any:
    return opset13.constant(np.ascontiguousarray(values))


def _ints(values: int | list[int]) -> Any:
    return opset13.constant(np.array(values, np.int64))
