"""Models of attentions and of states of a fixed size, as onnxruntime-genai's builder writes Qwen3.5 and LFM2.

The tokens are those of onnxruntime, which computes all of them again for each next one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import InputError, StateError
from engine.generation import Draft, Generator, PromptLookup, Sampling, Scheduler
from engine.passes import LastPosition, MakeStateful, MaskedCaches

DEVICES = ("CPU", "TEMPLATE")
VOCABULARY, HEADS, SIZE = 32, 4, 16
WIDTH = HEADS * SIZE
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
OWN = {"CausalConvWithState", "GatedRMSNorm", "GroupQueryAttention", "LinearAttention", "LinearAttentionGate",
       "MRotaryEmbedding"}  # fmt: skip


class Hybrid:
    """A decoder with a layer of each of these kinds: "delta", "conv", or "attention"."""

    def __init__(self, *layers: str) -> None:
        self.random = np.random.default_rng(3)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs = [
            self.info("input_ids", INT64, "batch_size", "sequence_length"),
            self.info("attention_mask", INT64, "batch_size", "total_sequence_length"),
            self.info("position_ids", INT64, 3, "batch_size", "sequence_length"),
        ]
        self.outputs = [self.info("logits", FLOAT, "batch_size", "sequence_length", VOCABULARY)]
        self.lengths()
        hidden = self.add("Gather", [self.weight("table", VOCABULARY, WIDTH), "input_ids"], ["embedded"])
        for index, kind in enumerate(layers):
            value = getattr(self, kind)(index, hidden)
            value = self.add("MatMul", [value, self.weight(f"o{index}", WIDTH, WIDTH)], [f"m{index}"])
            hidden = self.add("Add", [hidden, value], [f"h{index}"])
        self.add("MatMul", [hidden, self.weight("head", WIDTH, VOCABULARY)], ["logits"])

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

    def delta(self, i: int, hidden: str) -> str:
        """Gated delta rule with 2 heads of queries and keys, and 4 of values, behind a convolution."""
        projected = self.add("MatMul", [hidden, self.weight(f"qkv{i}", WIDTH, 2 * WIDTH)], [f"p{i}"])
        mixed = self.convolved(i, projected, 2 * WIDTH, 4, "silu")
        parts = [f"{part}{i}" for part in "qkv"]
        widths = self.constant(f"widths{i}", np.array([WIDTH // 2, WIDTH // 2, WIDTH]))
        self.add("Split", [mixed, widths], parts, axis=-1)
        for part in parts[:2]:
            shape = self.constant(f"{part}_shape", np.array([0, 0, HEADS // 2, SIZE]))
            flat = self.constant(f"{part}_flat", np.array([0, 0, WIDTH // 2]))
            self.add("Reshape", [part, shape], [f"{part}_heads"])
            self.add("LpNormalization", [f"{part}_heads"], [f"{part}_unit"], axis=-1)
            self.add("Reshape", [f"{part}_unit", flat], [f"{part}_rows"])
        for part in "abz":
            width = WIDTH if part == "z" else HEADS
            self.add("MatMul", [hidden, self.weight(f"{part}w{i}", WIDTH, width)], [f"{part}{i}"])
        bias = self.constant(f"dt{i}", np.linspace(-1, 1, HEADS, dtype=np.float32))
        scale = self.constant(f"scale{i}", -np.linspace(0.1, 1, HEADS, dtype=np.float32))
        self.add("LinearAttentionGate", [f"a{i}", bias, scale, f"b{i}"], [f"decay{i}", f"beta{i}"])
        state = self.state(f"{i}.recurrent", HEADS, SIZE, SIZE)
        inputs = [f"q{i}_rows", f"k{i}_rows", f"v{i}", state, f"decay{i}", f"beta{i}"]
        attributes = {"q_num_heads": HEADS // 2, "kv_num_heads": HEADS, "update_rule": "gated_delta"}
        self.add("LinearAttention", inputs, [f"l{i}", f"present.{i}.recurrent"], **attributes)
        norm = self.constant(f"norm{i}", np.linspace(0.5, 1.5, SIZE, dtype=np.float32))
        return self.add("GatedRMSNorm", [f"l{i}", norm, f"z{i}"], [f"y{i}"])

    def conv(self, i: int, hidden: str) -> str:
        """A short convolution between two products, as in LFM2."""
        projected = self.add("MatMul", [hidden, self.weight(f"bx{i}", WIDTH, WIDTH)], [f"p{i}"])
        gate = self.add("MatMul", [hidden, self.weight(f"c{i}", WIDTH, WIDTH)], [f"gate{i}"])
        return self.add("Mul", [self.convolved(i, projected, WIDTH, 3, "none"), gate], [f"y{i}"])

    def convolved(self, i: int, value: str, channels: int, width: int, activation: str) -> str:
        self.add("Transpose", [value], [f"first{i}"], perm=(0, 2, 1))
        state = self.state(f"{i}.conv", channels, width - 1)
        inputs = [f"first{i}", self.weight(f"filter{i}", channels, 1, width), "", state]
        self.add("CausalConvWithState", inputs, [f"conv{i}", f"present.{i}.conv"], activation=activation)
        return self.add("Transpose", [f"conv{i}"], [f"mixed{i}"], perm=(0, 2, 1))

    def attention(self, i: int, hidden: str) -> str:
        angles = np.arange(64)[:, None] / 4.0 ** np.arange(SIZE // 2)
        tables = [self.constant(f"{part}{i}", getattr(np, part)(angles).astype(np.float32)) for part in ("cos", "sin")]
        parts = []
        for part in "qkv":
            self.add("MatMul", [hidden, self.weight(f"{part}w{i}", WIDTH, WIDTH)], [f"{part}{i}"])
            parts.append(f"{part}{i}")
            if part != "v":
                rotation = {"num_heads": HEADS, "mrope_section": [4, 2, 2], "mrope_layout": 1}
                parts[-1] = self.add("MRotaryEmbedding", [f"{part}{i}", "position_ids", *tables], [f"{part}r{i}"],
                                     **rotation)  # fmt: skip
        past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        present = [f"present.{i}.{part}" for part in ("key", "value")]
        for names, values, kind in ((past, self.inputs, "past"), (present, self.outputs, "total")):
            values += [self.info(n, FLOAT, "batch_size", HEADS, f"{kind}_sequence_length", SIZE) for n in names]
        return self.add("GroupQueryAttention", [*parts, *past, "last", "total"], [f"y{i}", *present],
                        num_heads=HEADS, kv_num_heads=HEADS)  # fmt: skip

    def state(self, name: str, *shape: int) -> str:
        self.inputs.append(self.info(f"past.{name}", FLOAT, "batch_size", *shape))
        self.outputs.append(self.info(f"present.{name}", FLOAT, "batch_size", *shape))
        return f"past.{name}"

    @staticmethod
    def info(name: str, kind: int, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def add(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        domain = "com.microsoft" if op_type in OWN else ""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, (self.random.normal(size=shape) * 2 / np.sqrt(WIDTH)).astype(np.float32))

    def constant(self, name: str, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def proto(self) -> Any:
        graph = helper.make_graph(self.nodes, "hybrid", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


KINDS = ("delta", "attention", "conv", "delta")


def network_of(device: str, *layers: str, is_masked: bool = False, last: int = 1) -> Any:
    core = Core()
    model = core.read_model(Hybrid(*layers or KINDS).proto())
    MakeStateful(bound=64).run_on_model(model)
    if is_masked:
        MaskedCaches().run_on_model(model)
    LastPosition(count=last).run_on_model(model)
    return core.compile_model(model, device)


def expected(prompt: list[int], count: int, *layers: str) -> list[int]:
    """By onnxruntime, from all tokens each time."""
    proto = Hybrid(*layers or KINDS).proto()
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    tokens = list(prompt)
    for _ in range(count):
        positions = np.broadcast_to(np.arange(len(tokens)), (3, 1, len(tokens)))
        fed: dict[str, Any] = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        fed["position_ids"] = positions
        for each in session.get_inputs()[3:]:
            shape = [length if isinstance(length, int) else int(length == "batch_size") for length in each.shape]
            fed[each.name] = np.zeros(shape, np.float32)
        tokens.append(int(session.run(["logits"], fed)[0][0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prompt", [[7], [3, 1, 4, 1, 5, 9, 2]], ids=len)
def test_tokens_are_those_of_onnxruntime(prompt: list[int], device: str) -> None:
    generator = Generator(network_of(device))
    wanted = expected(prompt, 12)
    assert len(set(wanted)) > 3
    assert generator.generate(prompt, 12) == [wanted]


def test_batches_and_forks() -> None:
    prompts = [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]]
    alone = [expected(prompt, 8) for prompt in prompts]
    network = network_of("CPU")
    assert Generator(network).generate(prompts, 8) == alone
    generator = Generator(network)
    generator.append(prompts[0])
    generator.step()
    fork = generator.fork()
    for each in (generator, fork):
        for _ in range(7):
            each.step()
        assert each.tokens == [[*prompts[0], *alone[0]]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_rewind_returns_to_a_checkpoint(device: str) -> None:
    """The tokens since the checkpoint are computed again; they need not be given again."""
    network, prompt = network_of(device), [3, 1, 4, 1, 5]
    generator = Generator(network, checkpoints=3)
    generator.append(prompt)
    for _ in range(6):
        generator.step()
    (tokens,) = generator.tokens  # the last one is not computed
    assert generator.request.checkpoints == [7, 8, 9]
    with pytest.raises(StateError, match=r"cannot rewind to 6 of 10 computed tokens.*the oldest is after 7"):
        generator.rewind(5)
    assert generator.tokens == [tokens]
    other = generator.fork()
    generator.rewind(4)
    other.rewind(3)
    for each, count in ((generator, 4), (other, 3)):
        kept = tokens[: len(tokens) - count]
        each.append([9, 6])
        wanted = expected([*kept, 9, 6], 4)
        for _ in range(4):
            each.step()
        assert each.tokens == [[*kept, 9, 6, *wanted]]


def test_a_rewind_to_a_token_between_checkpoints() -> None:
    """A prompt is one inference: rewinding into it computes its beginning again."""
    generator = Generator(network_of("CPU"), checkpoints=2)
    generator.append([3, 1, 4])
    generator.logits()
    generator.append([1, 5, 9, 2, 6])
    generator.logits()
    generator.rewind(2)
    assert generator.request.length == 3
    assert generator.tokens == [[3, 1, 4, 1, 5, 9]]
    wanted = expected([3, 1, 4, 1, 5, 9], 3)
    for _ in range(3):
        generator.step()
    assert generator.tokens[0][6:] == wanted


def test_rewinds_after_a_sequence_was_repeated() -> None:
    """Computing its tokens before they are repeated keeps a checkpoint, too."""
    network = network_of("CPU")
    generator = Generator(network, checkpoints=4)
    for token in (3, 1):
        generator.append([token])
        generator.logits()
    generator.append([4, 1, 5, 9])
    generator.repeat(2)
    for tokens in ([[2], [7]], [[6], [1]]):
        generator.append(tokens)
        generator.logits()
    for length in range(1, 8):
        fork = generator.fork()
        fork.rewind(8 - length)
        kept = [[3, 1, 4, 1, 5, 9, 2, 6][:length], [3, 1, 4, 1, 5, 9, 7, 1][:length]]
        assert fork.tokens == kept
        fork.append([[8], [8]])
        for found, tokens in zip(fork.logits(), kept, strict=True):
            alone = Generator(network)
            alone.append([*tokens, 8])
            np.testing.assert_allclose(found, alone.logits()[0], rtol=0, atol=1e-3)  # logits of 30, in f32
    with pytest.raises(StateError, match="no checkpoint is old enough"):
        generator.rewind(8)


def test_checkpoints_cost_the_memory_of_the_states() -> None:
    network = network_of("CPU")
    generator = Generator(network, checkpoints=4)
    generator.append([3, 1, 4])
    for _ in range(9):
        generator.step()
    state = generator.request.query_state()
    size = sum(state[v.name].nbytes for v in network.variables if v.axis is None)
    assert generator.request.checkpoint_bytes == 4 * size
    plain = Generator(network)
    plain.append([3, 1, 4])
    plain.step()
    assert (plain.request.checkpoint_bytes, plain.request.checkpoints) == (0, [])
    with pytest.raises(StateError, match=r"no checkpoint is old enough; there is none\. Keep more"):
        plain.rewind(2)


def test_a_state_saved_and_loaded_goes_on_without_checkpoints(tmp_path: Path) -> None:
    network, prompt = network_of("CPU"), [3, 1, 4, 1, 5]
    generator = Generator(network, checkpoints=3)
    generator.append(prompt)
    generator.step()
    generator.step()
    generator.request.save(tmp_path / "state")
    other = network_of("TEMPLATE").create_infer_request()
    with pytest.raises(StateError):  # of another device's network, but the same model
        other.undo(1)
    other.load(tmp_path / "state")
    assert (other.length, other.checkpoints) == (6, [])


def test_a_gathered_batch_has_no_checkpoints() -> None:
    """They are of other sequences."""
    network = network_of("CPU")
    one, other = (Generator(network, checkpoints=3) for _ in range(2))
    for each, prompt in ((one, [3, 1, 4, 1, 5]), (other, [2, 7, 1, 8, 2])):
        each.append(prompt)
        each.logits()
        each.append([9])
        each.logits()
    one.request.gather([(other.request, 0, 6), (one.request, 0, 6)])
    assert one.request.checkpoints == []
    with pytest.raises(StateError):
        one.request.undo(1)
    assert other.request.checkpoints


def sums(device: str) -> Any:
    """A model with a past that grows and a state that is replaced, the sum of all tokens: the next token is one more
    than the sum of both, modulo 11.
    """
    graph = onnx.parser.parse_graph("""
        sums (int64[b, n] input_ids, int64[b, c] attention_mask, int64[b, n] position_ids, int64[b, p] past_0,
              int64[b, 1] past_1)
          => (float[b, 1, 11] logits, int64[b, c] present_0, int64[b, 1] present_1)
          <int64[1] columns = {1}, int64 size = {11}, float[2] values = {0.0, 1.0}, int64 one = {1}>
        {
          present_0 = Concat<axis = 1>(past_0, input_ids)
          new = ReduceSum(input_ids, columns)
          present_1 = Add(past_1, new)
          visible = Mul(present_0, attention_mask)
          all = ReduceSum(visible, columns)
          twice = Add(all, present_1)
          more = Add(twice, one)
          next = Mod(more, size)
          logits = OneHot(next, size, values)
        }""")
    core = Core()
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["hybrid", "states", "sums"])
def test_sequences_join_batches(device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different lengths, with chunks of prompts and kept prefixes: each has its own row of every state."""
    if kind == "sums":
        network = sums(device)
    else:
        network = network_of(device, *(() if kind == "hybrid" else ("delta", "conv")), is_masked=kind == "hybrid")
    monkeypatch.setattr(type(network), "memory_statistics", lambda self: {"weights": 1 << 30})
    rows, infer = [], Scheduler._infer

    def counted(self: Scheduler, request: Any, inputs: Any, adapters: Any) -> Any:
        rows.append(len(inputs[0]))
        return infer(self, request, inputs, adapters)

    monkeypatch.setattr(Scheduler, "_infer", counted)
    prompts = [[3, 1, 4, 1, 5], [2, 7], [9] * 7, [1, 2, 3], [*range(10)] * 2, [*range(10), *range(10), 5]]
    with Scheduler(network, 3, prompt_chunk=2, prefix_cache_bytes=1 << 20) as scheduler:
        streams = [scheduler.submit(prompt, 10 + index) for index, prompt in enumerate(prompts)]
        for index, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            assert stream.result() == Generator(network).generate(prompt, 10 + index)[0]
        again = scheduler.submit(prompts[-1], 10)
        assert again.result() == streams[-1].tokens[:10]
        assert again.reused == 20
    assert max(rows) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_with_proposals(device: str) -> None:
    """The states return to before a run of which tokens were refused."""
    network = network_of(device, last=9)
    lookup = PromptLookup(shortest=1, cost=0.01)
    accepted = proposed = 0
    for prompt in ([3, 1, 4, 1, 3, 1], [7, 7, 7]):
        for draft in (lookup, Draft(network, tokens=3, cost=0.01)):
            generator = Generator(network, draft=draft, checkpoints=2)
            assert generator.generate(prompt, 20) == Generator(network).generate(prompt, 20)
            generator.rewind(1)
            (kept,) = generator.tokens
            assert generator.generate([5, 6], 4) == Generator(network).generate([*kept, 5, 6], 4)
            assert generator.speculation is not None
            accepted += generator.speculation.accepted
            proposed += generator.speculation.proposed
    assert 10 < accepted < proposed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_batched", [True, False])
def test_proposals_for_sequences_of_a_scheduler(device: str, is_batched: bool) -> None:
    """In a batch, only for a sequence that runs alone, which others may join at any time."""
    network = network_of(device, is_masked=is_batched, last=9)
    lookup = PromptLookup(shortest=1, cost=0.01)
    few = Sampling(logit_bias=dict.fromkeys([3, 1, 7], 1000.0))  # which repeat soon
    prompts = [[3, 1, 4, 1, 3, 1], [7, 7, 7], [2, 8], [5, 6, 5, 6]]
    with Scheduler(network, 3, draft=lookup, is_batched=is_batched, prefix_cache_bytes=1 << 20) as scheduler:
        first = scheduler.submit(prompts[0], 50, sampling=few)
        tokens = iter(first)
        for _ in range(12):
            next(tokens)
        streams = [scheduler.submit(prompt, 12, sampling=few) for prompt in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert stream.result() == Generator(network, few).generate(prompt, 12)[0]
        assert first.result() == Generator(network, few).generate(prompts[0], 50)[0]
        found = scheduler.statistics
    assert 5 < found.accepted_tokens < found.proposed_tokens


def test_states_whose_size_varies_have_no_batches() -> None:
    """Such as the last tokens of a window, which are as many as there are tokens at first."""
    graph = onnx.parser.parse_graph("""
        window (int64[b, n] input_ids, int64[b, c] attention_mask, int64[b, n] position_ids, int64[b, p] past_0)
          => (float[b, 1, 11] logits, int64[b, m] present_0)
          <int64[1] columns = {1}, int64[1] first = {-3}, int64[1] end = {100}, int64 size = {11},
           float[2] values = {0.0, 1.0}>
        {
          all = Concat<axis = 1>(past_0, input_ids)
          present_0 = Slice(all, first, end, columns)
          sum = ReduceSum(present_0, columns)
          next = Mod(sum, size)
          logits = OneHot(next, size, values)
        }""")
    core = Core()
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")
    with pytest.raises(InputError, match=r"is replaced by each inference and has shape \[b,.*pass is_batched=False"):
        Scheduler(network)
    with Scheduler(network, is_batched=False) as scheduler:
        streams = [scheduler.submit(prompt, 6) for prompt in ([3, 1, 4, 1], [2], [9, 9])]
        assert [stream.result()[:3] for stream in streams] == [[6, 0, 7], [2, 4, 8], [7, 3, 8]]


def test_prompts_of_different_lengths_are_refused() -> None:
    """Padding would change the states of the shorter ones."""
    generator = Generator(network_of("CPU"))
    with pytest.raises(InputError, match=r"variable `past\.0\.conv` is a state that padding would change"):
        generator.append([[3, 1, 4], [7]])
    assert generator.tokens == []


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["append", "step", "rewind", "fork", "reorder"]), st.integers(1, 4)),
                min_size=4, max_size=12))  # fmt: skip
def test_any_order_of_steps_and_rewinds(device: str, actions: list[tuple[str, int]]) -> None:
    """The logits are always those of the tokens, computed at once."""
    network = NETWORKS.setdefault(device, network_of(device))
    generator = Generator(network, checkpoints=3)
    generator.append([[3, 1, 4], [2, 7, 1]])
    for action, count in actions:
        if action == "append":
            generator.append([[(5 * i + row) % VOCABULARY for i in range(count)] for row in (1, 2)])
        elif action == "step":
            with contextlib.suppress(InputError):  # a rewind may have left no tokens to compute
                generator.step()
        elif action == "fork":
            generator = generator.fork()
        elif action == "reorder" and generator.request.query_state()["past.0.conv"].shape[0] == 2:
            generator.reorder([count % 2, count // 2 % 2])
        else:
            before = generator.tokens
            try:
                generator.rewind(min(count, len(before[0]) - 1))
            except StateError:
                assert generator.tokens == before
    generator.append([[9], [8]])
    whole = Generator(network)
    whole.append(generator.tokens)
    np.testing.assert_allclose(generator.logits(), whole.logits(), rtol=1e-3, atol=1e-3)


NETWORKS: dict[str, Any] = {}
"""By device, since compiling takes longer than a case."""
