"""Language models as onnxruntime-genai's builder writes them since 0.18: small ones, written here by hand.

The past's last dimension is symbolic, layers with a window keep only the keys of the window, and the last product may
share the table of embeddings. If one fails, no model of that builder generates text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.generation import Generator
from engine.passes import LastPosition, MakeStateful

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


def generator_of(proto: Any, device: str) -> Generator:
    core = Core()
    model = core.read_model(proto)
    MakeStateful(bound=64).run_on_model(model)
    LastPosition().run_on_model(model)
    return Generator(core.compile_model(model, device))


def expected(proto: Any, prompt: list[int], count: int) -> list[int]:
    """By onnxruntime, which computes all tokens again for each next one; buffers begin empty."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    tokens = list(prompt)
    for _ in range(count):
        fed: dict[str, Any] = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        for each in session.get_inputs()[2:]:
            room = WINDOW if each.shape[2] == "past_sliding_length" else 0
            fed[each.name] = np.zeros((1, each.shape[1], room, each.shape[3]), np.float32)
        tokens.append(int(session.run(["logits"], fed)[0][0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize(
    "layers",
    [
        [("packed", 16)],
        [("separate", 16)],
        [("MultiHeadAttention", 16)],
        [("Attention", 16)],
        [("windowed", 16), ("packed", 32), ("windowed", 16)],  # different sizes under one name
    ],
    ids=lambda layers: "+".join(form for form, _ in layers),
)
def test_tokens_are_those_of_onnxruntime(layers: list[tuple[str, int]], device: str) -> None:
    generator = generator_of(Decoder(*layers).proto(), device)
    proto = Decoder(*layers, has_sizes=True).proto()
    prompts = [[3, 1, 4, 1, 5, 9, 2], *([[7]] if len(layers) > 1 else [])]
    for prompt in prompts:
        assert generator.generate(prompt, 6) == [expected(proto, prompt, 6)]
        generator.reset()


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_a_table_of_embeddings_that_the_last_product_has_too(device: str) -> None:
    form = Decoder(("packed", 16), table="int4")
    proto = Decoder(("packed", 16), table="int4", has_sizes=True).proto()
    assert generator_of(form.proto(), device).generate([1, 2, 3], 6) == [expected(proto, [1, 2, 3], 6)]


def lengths_of(proto: Any) -> list[Any]:
    model = Core().read_model(proto)
    MakeStateful().run_on_model(model)
    return [variable.initial.shape for variable in model.variables]


@pytest.mark.parametrize(
    ("form", "heads"),
    [("packed", 1), ("separate", 1), ("MultiHeadAttention", 2), ("Attention", 1), ("Attention of heads", 2),
     ("Concat", 2), ("windowed", 1)],
)  # fmt: skip
def test_lengths_that_only_the_attention_tells(form: str, heads: int) -> None:
    """The size of the heads, which differs between layers, and their number, where that has a name, too."""
    found = lengths_of(Decoder((form, 16), (form, 24), heads="kv_heads").proto())
    assert sorted(found) == [(1, heads, 0, 16)] * 2 + [(1, heads, 0, 24)] * 2


def test_batches_and_forks_of_windows() -> None:
    """A batch pads; a fork goes on by itself; columns that have left the window cannot be restored."""
    generator = generator_of(Decoder(("windowed", 16), ("packed", 16)).proto(), "CPU")
    prompt, other = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]
    alone = [generator_of(Decoder(("windowed", 16), ("packed", 16)).proto(), "CPU").generate(each, 8)[0]
             for each in (prompt, other)]  # fmt: skip
    assert generator.generate([prompt, other], 8) == alone
    generator.reset()
    generator.append(prompt)
    generator.step()
    fork = generator.fork()
    for each in (generator, fork):
        for _ in range(7):
            each.step()
        assert each.tokens == [[*prompt, *alone[0]]]
