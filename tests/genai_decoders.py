"""Small language models in the forms of onnxruntime-genai's builder."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, WINDOW = 32, 32, 4
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


class Decoder:
    """A decoder whose layers are attentions of these forms, each with the size of its heads."""

    def __init__(self, *layers: tuple[str, int], table: str = "f32", has_sizes: bool = False, heads: Any = 1) -> None:
        self.random = np.random.default_rng(len(layers))
        self.layers, self.heads, self.has_sizes = layers, heads, has_sizes
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs = [self.info("input_ids", INT64, "batch_size", "sequence_length")]
        self.inputs.append(self.info("attention_mask", INT64, "batch_size", "total_sequence_length"))
        self.outputs = [self.info("logits", FLOAT, "batch_size", "sequence_length", VOCABULARY)]
        self.lengths()
        hidden = self.embedded(table)
        for index, (form, size) in enumerate(layers):
            hidden = self.layer(index, form, size, hidden)
        if table == "f32":
            self.add("MatMul", [hidden, self.weight("head", WIDTH, VOCABULARY)], ["logits"])
        else:
            self.add("MatMulNBits", [hidden, "codes", "scales"], ["logits"], K=WIDTH, N=VOCABULARY, bits=4,
                     block_size=16)  # fmt: skip

    def proto(self) -> Any:
        graph = helper.make_graph(self.nodes, "main_graph", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    @staticmethod
    def info(name: str, kind: int, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def add(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        is_own = op_type in ("GroupQueryAttention", "MultiHeadAttention", "MatMulNBits", "GatherBlockQuantized")
        domain = "com.microsoft" if is_own else ""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, (self.random.normal(size=shape) / 3).astype(np.float32))

    def constant(self, name: str, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def lengths(self) -> None:
        """The numbers of tokens, from the mask."""
        self.constant("one", np.array([1]))
        self.constant("column", np.array(1))
        self.add("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=0)
        self.add("Sub", ["sum", "one"], ["minus"])
        self.add("Cast", ["minus"], ["last"], to=TensorProto.INT32)
        self.add("Shape", ["attention_mask"], ["mask_shape"])
        self.add("Gather", ["mask_shape", "column"], ["columns"])
        self.add("Cast", ["columns"], ["total"], to=TensorProto.INT32)

    def embedded(self, table: str) -> str:
        if table == "f32":
            return self.add("Gather", [self.weight("table", VOCABULARY, WIDTH), "input_ids"], ["embedded"])
        self.constant("codes", self.random.integers(0, 256, (VOCABULARY, WIDTH // 16, 8), dtype=np.uint8))
        self.constant("scales", self.random.uniform(0.05, 0.1, (VOCABULARY, WIDTH // 16)).astype(np.float32))
        self.constant("flat_shape", np.array([VOCABULARY, WIDTH // 2]))
        self.add("Reshape", ["codes", "flat_shape"], ["flat"])
        options = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
        return self.add("GatherBlockQuantized", ["flat", "input_ids", "scales"], ["embedded"], **options)

    def layer(self, index: int, form: str, size: int, hidden: str) -> str:
        keys = 2 if form in ("MultiHeadAttention", "Attention of heads", "Concat") else 1
        past, present = (
            [f"{kind}.{index}.{part}" for part in ("key", "value")] for kind in ("past_key_values", "present")
        )
        length = ["sliding" if form == "windowed" else "sequence"] * 2
        width = size if self.has_sizes else "kv_cache_dim"
        for names, values, kind in ((past, self.inputs, "past"), (present, self.outputs, "total")):
            heads = keys if self.heads == 1 or self.has_sizes else self.heads
            values += [self.info(n, FLOAT, "batch_size", heads, f"{kind}_{length[0]}_length", width) for n in names]
        packed = self.add("MatMul", [hidden, self.weight(f"qkv{index}", WIDTH, (2 + 2 * keys) * size)], [f"p{index}"])
        out = self.attended(index, form, size, keys, packed, past, present)
        value = self.add("MatMul", [out, self.weight(f"o{index}", 2 * size, WIDTH)], [f"m{index}"])
        return self.add("Add", [hidden, value], [f"h{index}"])

    def attended(self, index: int, form: str, size: int, keys: int, packed: str, past: Any, present: Any) -> str:
        outputs = [f"a{index}", *present]
        grouped: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 1}
        if form == "windowed":
            grouped |= {"local_window_size": WINDOW, "sliding_window_cache": 1}
        if form in ("packed", "windowed"):
            return self.add("GroupQueryAttention", [packed, "", "", *past, "last", "total"], outputs, **grouped)
        if form == "sinks":  # as in gpt-oss
            inputs = [packed, "", "", *past, "last", "total", "", "", "", "", self.weight(f"sink{index}", 2)]
            return self.add("GroupQueryAttention", inputs, outputs, **grouped)
        if form.startswith("turned"):  # a window over a whole cache, and rotary embeddings
            angles = np.outer(np.arange(64), 10.0 ** -np.arange(0, 4, 8 / size))
            turns = [self.constant(f"{name}{index}", of(angles).astype(np.float32))
                     for name, of in (("cos", np.cos), ("sin", np.sin))]  # fmt: skip
            grouped |= {"do_rotary": 1, "local_window_size": WINDOW + 1 if form == "turned" else -1}
            inputs = [packed, "", "", *past, "last", "total", *turns]
            return self.add("GroupQueryAttention", inputs, outputs, **grouped)
        parts = [f"{part}{index}" for part in "qkv"]
        widths = self.constant(f"widths{index}", np.array([2 * size, keys * size, keys * size]))
        self.add("Split", [packed, widths], parts, axis=-1)
        if form == "separate":
            return self.add("GroupQueryAttention", [*parts, *past, "last", "total"], outputs, **grouped)
        if form == "MultiHeadAttention":
            attributes = {"num_heads": 2, "unidirectional": 1}
            return self.add("MultiHeadAttention", [*parts, "", "", "", *past], outputs, **attributes)
        if form == "Attention":
            attributes = {"q_num_heads": 2, "kv_num_heads": keys, "is_causal": 1}
            return self.add("Attention", [*parts, "", *past], outputs, **attributes)
        by_head = []
        for part in parts:
            shape = self.constant(f"{part}_shape", np.array([0, 0, 2, size]))
            self.add("Reshape", [part, shape], [f"{part}_split"])
            by_head.append(self.add("Transpose", [f"{part}_split"], [f"{part}_heads"], perm=(0, 2, 1, 3)))
        if form == "Concat":
            by_head[1:] = [
                self.add("Concat", [old, new], [name], axis=2)
                for old, new, name in zip(past, by_head[1:], present, strict=True)
            ]
            self.add("Attention", by_head, [f"y{index}"], is_causal=1)
        else:
            self.add("Attention", [*by_head, "", *past], [f"y{index}", *present], is_causal=1)
        self.add("Transpose", [f"y{index}"], [f"t{index}"], perm=(0, 2, 1, 3))
        return self.add("Reshape", [f"t{index}", self.constant(f"joined{index}", np.array([0, 0, 2 * size]))],
                        [f"a{index}"])  # fmt: skip
