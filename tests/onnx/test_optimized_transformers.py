"""Whole models as onnxruntime's tools write them: on each device, the answers and tokens of onnxruntime.

If one fails, a language model of onnxruntime-genai's builder, or a network that onnxruntime optimized, says something
else here, or runs without the kernels that make it fast.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.generation import Generator
from engine.onnx import read_model
from engine.onnx.contrib import DOMAIN
from engine.passes import MakeStateful
from engine.plugin_api import SupportLevel
from engine.testing.networks import seeded_network

Array = NDArray[Any]
DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE")
GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel


def session(source: Any, level: Any = GraphOptimizationLevel.ORT_DISABLE_ALL, **options: Any) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = level
    settings.log_severity_level = 4
    for name, value in options.items():
        setattr(settings, name, value)
    return onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])


# -- a decoder of onnxruntime-genai's builder --------------------------------------------------------------

LAYERS, WIDTH, HEADS, KV_HEADS, SIZE, INNER, VOCABULARY, LONGEST, BLOCK = 2, 64, 4, 2, 16, 96, 50, 32, 32


class Decoder:
    """Decoder-only, grouped heads, rotary embeddings and weights of 4 bits, in the form of the builder's files."""

    def __init__(self, *, bits: int = 4, is_packed: bool = False, **attention: Any) -> None:
        self.random = np.random.default_rng(0)
        self.bits, self.is_packed, self.attention = bits, is_packed, attention
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def node(self, op_type: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; `-` in the names is an omitted value. Returns the name of its first output."""
        names = [["" if name == "-" else name for name in each.split()] for each in (inputs, outputs)]
        self.nodes.append(helper.make_node(op_type, *names, f"node_{names[1][0]}", domain=domain, **attributes))
        return names[1][0]

    def tensor(self, name: str, value: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def scales(self, name: str) -> str:
        return self.tensor(name, self.random.uniform(0.8, 1.2, WIDTH).astype(np.float32))

    def product(self, x: str, name: str, rows: int, columns: int) -> str:
        """MatMulNBits with weights that keep the scale of `x`."""
        codes = self.random.integers(0, 256, (columns, rows // BLOCK, BLOCK * self.bits // 8), np.uint8)
        step = 4 / (1 << self.bits) / np.sqrt(rows)
        scales = (step * self.random.uniform(0.7, 1.3, (columns * rows // BLOCK))).astype(np.float32)
        weights = [self.tensor(f"{name}.qweight", codes), self.tensor(f"{name}.scales", scales)]
        return self.node(
            "MatMulNBits", f"{x} {' '.join(weights)}", name, DOMAIN,
            K=rows, N=columns, bits=self.bits, block_size=BLOCK, accuracy_level=0,
        )  # fmt: skip

    def layer(self, index: int, x: str, residual: str) -> tuple[str, str]:
        """One layer on normalized `x`: the normalized sum after it, and the sum."""
        n = f"l{index}"
        q, k = HEADS * SIZE, KV_HEADS * SIZE
        if self.is_packed:
            operands = self.product(x, f"{n}.qkv", WIDTH, q + 2 * k) + " - -"
        else:
            operands = " ".join(self.product(x, f"{n}.{p}", WIDTH, w) for p, w in (("q", q), ("k", k), ("v", k)))
        past = " ".join(f"past_key_values.{index}.{part}" for part in ("key", "value"))
        present = " ".join(f"present.{index}.{part}" for part in ("key", "value"))
        self.node(
            "GroupQueryAttention",
            f"{operands} {past} seqlens_k total cos_cache sin_cache",
            f"{n}.attention {present}",
            DOMAIN, num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1, **self.attention,
        )  # fmt: skip
        attended = self.product(f"{n}.attention", f"{n}.o", q, WIDTH)
        y, total = self.add_and_normalize(residual, attended, f"{n}.middle")
        gate, up = (self.product(y, f"{n}.{part}", WIDTH, INNER) for part in ("gate", "up"))
        gated = self.node("Mul", f"{gate} {self.node('Sigmoid', gate, f'{n}.sigmoid')}", f"{n}.silu")
        inner = self.node("Mul", f"{gated} {up}", f"{n}.inner")
        return self.add_and_normalize(total, self.product(inner, f"{n}.down", INNER, WIDTH), f"{n}.end")

    def add_and_normalize(self, residual: str, x: str, name: str) -> tuple[str, str]:
        inputs = f"{residual} {x} {self.scales(f'{name}.weight')}"
        self.node("SkipSimplifiedLayerNormalization", inputs, f"{name} - - {name}.sum", DOMAIN, epsilon=1e-5)
        return name, f"{name}.sum"

    def build(self) -> onnx.ModelProto:
        one = self.tensor("one", np.array([1], np.int64))
        counted = self.node("ReduceSum", f"attention_mask {one}", "counted", keepdims=1)
        self.node("Cast", self.node("Sub", f"{counted} {one}", "last"), "seqlens_k", to=TensorProto.INT32)
        length = self.node("Gather", f"{self.node('Shape', 'attention_mask', 'shape')} {self.tensor('axis', 1)}", "t")
        self.node("Cast", length, "total", to=TensorProto.INT32)
        angles = np.outer(np.arange(LONGEST), 100.0 ** -np.linspace(0, 1, SIZE // 2, endpoint=False))
        self.tensor("cos_cache", np.cos(angles).astype(np.float32))
        self.tensor("sin_cache", np.sin(angles).astype(np.float32))
        table = self.tensor("embeddings", self.random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
        residual = self.node("Gather", f"{table} input_ids", "embedded")
        x = self.node(
            "SimplifiedLayerNormalization", f"{residual} {self.scales('first.weight')}", "first",
            axis=-1, epsilon=1e-5, stash_type=1,
        )  # fmt: skip
        for index in range(LAYERS):
            x, residual = self.layer(index, x, residual)
        self.product(x, "logits", WIDTH, VOCABULARY)
        return self.model()

    def model(self) -> onnx.ModelProto:
        def caches(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(
                    f"{prefix}.{i}.{part}", TensorProto.FLOAT, ["batch", KV_HEADS, length, SIZE]
                )
                for i in range(LAYERS)
                for part in ("key", "value")
            ]

        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
            *caches("past_key_values", "past"),
        ]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])
        graph = helper.make_graph(self.nodes, "decoder", inputs, [logits, *caches("present", "total")], self.tensors)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


PROMPTS = {"one": [[3, 14, 15, 9, 26]], "two": [[3, 14, 15, 9, 26], [41, 5, 8]]}
STEPS = 5


def generate(
    run: Any, prompts: list[list[int]], chunk: int | None = None, capacity: int = 0
) -> tuple[list[list[int]], list[Array]]:
    """Greedy tokens, and the logits of the last position of each step; shorter prompts are padded at their right.

    With a `chunk`, the prompt is given in two parts, the first of which has so many tokens. With a `capacity`, the past
    is a buffer of this length from the start.
    """
    longest, batch = max(map(len, prompts)), len(prompts)
    ids = np.zeros((batch, longest), np.int64)
    mask = np.zeros((batch, longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    empty = np.zeros((batch, KV_HEADS, capacity, SIZE), np.float32)
    past = {f"{i}.{part}": empty for i in range(LAYERS) for part in ("key", "value")}
    if chunk is not None:
        result = run({"input_ids": ids[:, :chunk], "attention_mask": mask[:, :chunk], **named(past)})
        past, ids = {name: result[f"present.{name}"] for name in past}, ids[:, chunk:]
    rows = np.array([len(prompt) - 1 - (chunk or 0) for prompt in prompts])
    tokens, logits = [], []
    for _ in range(STEPS):
        result = run({"input_ids": ids, "attention_mask": mask, **named(past)})
        logits.append(result["logits"][np.arange(batch), rows])
        ids = logits[-1].argmax(-1)[:, None]
        tokens.append(ids[:, 0].tolist())
        past = {name: result[f"present.{name}"] for name in past}
        mask, rows = np.concatenate((mask, np.ones((batch, 1), np.int64)), axis=1), np.zeros(batch, np.int64)
    return tokens, logits


def named(past: dict[str, Array]) -> dict[str, Array]:
    return {f"past_key_values.{name}": np.asarray(value) for name, value in past.items()}


def runner(network: Any) -> Any:
    return lambda feed: {name: np.array(value) for name, value in network(feed).items()}


def expected_of(model: onnx.ModelProto, prompts: list[list[int]], **options: Any) -> Any:
    oracle = session(model.SerializeToString())
    names = [value.name for value in model.graph.output]
    return generate(lambda feed: dict(zip(names, oracle.run(None, feed), strict=True)), prompts, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [{}, {"is_packed": True, "local_window_size": 3}, {"bits": 8, "softcap": 5.0}],
    ids=["usual", "packed-window", "bytes-softcap"],
)
def test_a_decoder_generates_the_tokens_of_onnxruntime(options: dict[str, Any], device: str) -> None:
    model = Decoder(**options).build()
    run = runner(Core().compile_model(model, device))
    for prompts in PROMPTS.values():
        wanted, logits = expected_of(model, prompts)
        tokens, found = generate(run, prompts)
        assert tokens == wanted
        for got, want in zip(found, logits, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.opencl
def test_a_decoder_on_opencl() -> None:
    if "OPENCL" not in Core().available_devices:
        pytest.skip("no OpenCL device")
    model = Decoder().build()
    run = runner(Core().compile_model(model, "OPENCL"))
    assert generate(run, PROMPTS["two"])[0] == expected_of(model, PROMPTS["two"])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("prompts", "options"),
    [("one", {"chunk": 2}), ("two", {"capacity": 20}), ("one", {"chunk": 3, "capacity": LONGEST})],
    ids=["in-parts", "in-a-buffer", "in-parts-in-a-buffer"],
)
def test_a_prompt_and_its_past_in_other_forms(prompts: str, options: dict[str, int], device: str) -> None:
    model = Decoder().build()
    wanted, logits = expected_of(model, PROMPTS[prompts], **options)
    tokens, found = generate(runner(Core().compile_model(model, device)), PROMPTS[prompts], **options)
    assert tokens == wanted
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_a_stateful_decoder_generates_the_same_tokens(prompts: str, device: str) -> None:
    """Also from prompts of different lengths, whose caches have gaps."""
    proto, core = Decoder().build(), Core()
    model = core.read_model(proto)
    MakeStateful().run_on_model(model)
    assert all(variable.axis == 2 and variable.is_placed for variable in model.variables)
    generator = Generator(core.compile_model(model, device))
    tokens = generator.generate(PROMPTS[prompts], STEPS)
    assert tokens == np.transpose(expected_of(proto, PROMPTS[prompts])[0]).tolist()
    generator.rewind(1)  # the last token, which was not computed
    generator.rewind(1)  # and one that was
    assert [len(row) for row in generator.tokens] == [len(prompt) + STEPS - 2 for prompt in PROMPTS[prompts]]
    generator.append([[row[-2]] for row in tokens])
    assert generator.step() == [row[-1] for row in tokens]


def test_the_cpu_runs_a_decoder_by_its_fast_kernels() -> None:
    """Nothing runs on the reference evaluator, attentions are one step, and weights stay compressed.

    Queries, keys and values are one product, and so are gate and up.
    """
    model = Decoder().build()
    levels = {support.level for support in Core().query_model(model, "CPU").nodes.values()}
    assert levels == {SupportLevel.NATIVE}
    network = Core().compile_model(model, "CPU", {"PERF_COUNT": True})
    request = network.create_infer_request()

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        request.infer(feed)
        profile = request.profiling_info.nodes
        assert {node.status for node in profile} == {"native"}
        kinds = Counter(node.op_type for node in profile if node.name.startswith("node_"))
        assert kinds["Attention"] == LAYERS
        assert kinds["CompressedMatMul"] == 4 * LAYERS + 1
        assert not kinds.keys() & {"MatMul", "DequantizeLinear", "Softmax"}
        return {name: np.array(request.get_tensor(name)) for name in (value.name for value in model.graph.output)}

    generate(run, PROMPTS["two"])


# -- networks that onnxruntime optimized ------------------------------------------------------------------

OPTIMIZED: dict[str, tuple[set[str], int]] = {
    "bert_base": ({"SkipLayerNormalization", "FusedMatMul"}, 2),
    "gpt2_blocks": ({"SkipLayerNormalization", "FusedMatMul", "FastGelu"}, 2),
    "vit_b16": ({"SkipLayerNormalization", "FusedMatMul"}, 2),
    "segformer_b0": ({"SkipLayerNormalization", "FusedMatMul", "FusedConv"}, 4),
    "mlp": ({"FusedGemm"}, 0),
    "resnet50": ({"FusedConv"}, 0),
}
"""Operators that onnxruntime writes into a network, and the number of its attentions."""


@pytest.mark.parametrize("name", OPTIMIZED)
def test_an_optimized_network_has_the_answers_and_kernels_of_the_original(name: str, tmp_path: Path) -> None:
    network = seeded_network(name, small=True)
    written, attentions = OPTIMIZED[name]
    source, target = tmp_path / "source.onnx", tmp_path / "optimized.onnx"
    onnx.save(network.model, source)
    session(source, GraphOptimizationLevel.ORT_ENABLE_EXTENDED, optimized_model_filepath=str(target))
    assert {node.op_type for node in onnx.load(target).graph.node if node.domain == DOMAIN} >= written
    (expected,) = session(source).run(None, network.inputs)
    for device in DEVICES:
        (got,) = Core().compile_model(target, device)(network.inputs).values()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=device)
    assert {support.level for support in Core().query_model(target, "CPU").nodes.values()} == {SupportLevel.NATIVE}
    request = Core().compile_model(target, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer(network.inputs)
    kinds = Counter(node.op_type for node in request.profiling_info.nodes)
    assert kinds["Attention"] + kinds["FusedAttention"] == attentions
    assert not kinds["Softmax"]


# -- beside operators that are not known ------------------------------------------------------------------


def beside_unknown(*, is_declared: bool) -> onnx.ModelProto:
    """An operator that nobody knows, between operators of both domains."""
    steps = [
        ("MatMul", "x w", "product", ""),
        ("SimplifiedLayerNormalization", "product g", "normal", ""),
        ("Unheard", "normal", "unknown", DOMAIN),
        ("Relu", "product", "positive", ""),
        ("BiasGelu", "positive g", "gelu", DOMAIN),
        ("SkipSimplifiedLayerNormalization", "unknown gelu g", "y - - total", DOMAIN),
        ("FusedMatMul", "y w", "z", DOMAIN),
    ]
    nodes = [
        helper.make_node(kind, i.split(), ["" if o == "-" else o for o in out.split()], kind, domain=domain)
        for kind, i, out, domain in steps
    ]
    shape = ["batch", "length", 8]
    declared = [helper.make_tensor_value_info("unknown", TensorProto.FLOAT, shape)] if is_declared else []
    graph = helper.make_graph(
        nodes,
        "beside",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in ("z", "total")],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in (("w", (8, 8)), ("g", 8))],
        value_info=declared,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("is_declared", [False, True], ids=["undeclared", "declared"])
def test_an_unknown_operator_costs_its_neighbours_nothing(is_declared: bool) -> None:
    """Values that do not come from it keep their types and kernels; with its type declared, so do the others."""
    model = beside_unknown(is_declared=is_declared)
    nodes = {node.friendly_name: node for node in read_model(model).ordered_nodes() if node.input_values}
    levels = {name: support.level for name, support in Core().query_model(model, "CPU").nodes.items()}
    assert levels.pop("Unheard") is SupportLevel.REFUSED
    before = {"MatMul", "SimplifiedLayerNormalization", "Relu", "BiasGelu", "BiasGelu/Add"}
    after = {"SkipSimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization/Add", "FusedMatMul"}
    for name in before | after:
        (value, *_) = nodes[name].outputs
        assert str(value.type) == ("f32[batch,length,8]" if name in before or is_declared else "f32[...]")
        assert levels[name] is (SupportLevel.NATIVE if name in before or is_declared else SupportLevel.REFERENCE)
