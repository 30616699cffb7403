"""One plan for many lengths. If one fails, an inference gets the plan of other lengths, or each length is lowered."""

from __future__ import annotations

import contextlib
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from engine_cpu.compiler import Compiler
from engine_cpu.families import FamilyProgram
from engine_cpu.family_builder import NoFamily
from engine_cpu.fitting import Fit, Misfit, sample_lengths
from engine_cpu.fitting import check_lengths as end_lengths
from engine_cpu.programs import Programs
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.errors import Cancelled, InputError, OutOfMemoryError
from engine.ir import Constant, Model, Parameter, Result, Variable, f32
from engine.onnx import model_to_proto
from engine.ops import evaluate_model
from engine.passes import MakeStateful
from engine.runtime import GrowingArray, growing
from engine.testing.models import relative_error
from engine.testing.networks import repeated, rounding_tolerance, seeded_network, with_any_batch

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
FACTORS: list[Any] = [
    lambda n: n, lambda n: n + 3, lambda n: min(n, 20), lambda n: max(n, 5), lambda n: max(0, n - 5),
    lambda n: min(2 * n, n + 9), lambda n: n // 2, lambda n: n // 50, lambda n: -(-n // 16) * 16,
]  # fmt: skip
# Those whose inputs have a dynamic length besides the batch.
EXPORTS = [
    "attention_sdpa.dynamo20", "attention_boolean.script17", "bert_sdpa.dynamo23", "distilbert_eager.dynamo20",
    "gpt2_sdpa.dynamo20", "llama_sdpa.dynamo20", "layer_norm.script17", "rotary.dynamo20",
]  # fmt: skip
# The sums of at most 64 products in f32, of values near 1, through at most 2 layers.
TOLERANCE = 2e-6


def programs_of(network: Any) -> Programs:
    programs: Programs = network.programs
    return programs


def built(network: Any) -> int:
    """The number of programs and families that were lowered."""
    return len(programs_of(network).plans()) + len(programs_of(network).families)


def random_inputs(network: Any, batch: int, length: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feed = {}
    for port in network.inputs:
        shape = [d.get_length() if d.is_static else (batch if i == 0 else length) for i, d in enumerate(port.shape)]
        dtype = port.element_type.numpy
        is_real = dtype.kind == "f"
        feed[port.name] = rng.normal(size=shape).astype(dtype) if is_real else rng.integers(0, 2, shape).astype(dtype)
    return feed


@pytest.mark.parametrize("name", EXPORTS)
def test_answers_do_not_depend_on_what_was_lowered(name: str) -> None:
    """Many lengths by a family, in any order, are what onnxruntime computes; two are lowered."""
    path = FIXTURES / "exports" / f"{name}.dynamic.onnx"
    network = Core().compile_model(path, "CPU")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for seed, length in enumerate((3, 9, 16, 2, 5, 13, 7, 4)):
        feed = random_inputs(network, 2, length, seed)
        for found, expected in zip(network(feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert [type(each) for each in programs_of(network).families] == [FamilyProgram]
    assert len(programs_of(network).plans()) == 1


def test_batches_of_a_convolutional_network() -> None:
    network = Core().compile_model(FIXTURES / "exports" / "mobilenet.script17.dynamic.onnx", "CPU")
    alone = {}
    for batch in (2, 3, 7, 5, 4):
        feed = random_inputs(network, batch, 0, batch)
        found = network(feed)[0]
        for index in range(batch):
            one = {name: value[index : index + 1] for name, value in feed.items()}
            alone[batch, index] = network(one)[0]
            np.testing.assert_allclose(found[index : index + 1], alone[batch, index], rtol=1e-5, atol=1e-5)
    assert built(network) == 3  # a batch of 1, one of 2, and a family


# The sizes at which the best algorithm of a convolution depends on the batch, and whether chains are worth it.
BATCHES = (1, 3, 4, 2, 16, 9, 17, 6)
PICTURES = [
    "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "squeezenet", "unet", "yolo", "convnext_t", "vit_b16",
    "segformer_b0", "mobilevit",
]  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_one_plan_serves_all_batches_of_real_structures(name: str) -> None:
    seeded = seeded_network(name, small=True)
    model = with_any_batch(seeded.model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    network = Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
    for batch in BATCHES:
        feed = repeated(seeded.inputs, batch)
        for found, expected in zip(network(feed).values(), session.run(None, feed), strict=True):
            assert relative_error(found, expected) <= rounding_tolerance(seeded.model)
    assert network.get_metric("PLANS_PER_SHAPE") == ()
    families = programs_of(network).families
    assert all(isinstance(each, FamilyProgram) for each in families)
    assert len(families) <= 3  # for small maps, other kernels are clearly better for many images
    assert len(programs_of(network).plans()) == 2  # a batch of 1, and the first greater one


@pytest.mark.parametrize("name", EXPORTS)
def test_batches_and_lengths_of_encoders_that_vary_together(name: str) -> None:
    """The mask of each sequence has a row for each token: a product of three lengths."""
    path = FIXTURES / "exports" / f"{name}.dynamic.onnx"
    network = Core().compile_model(path, "CPU")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for seed, (batch, length) in enumerate(((2, 5), (3, 9), (4, 16), (7, 2), (2, 12), (9, 9), (16, 7), (2, 3))):
        feed = random_inputs(network, batch, length, seed)
        for found, expected in zip(network(feed).values(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert built(network) == 2


def test_a_table_that_ends_one_length_does_not_end_another() -> None:
    """Positions up to 20: batches of 40 have the plan of smaller ones all the same."""
    x = Parameter(f32, ["batch", "n", 4], "x")
    table = Constant(np.arange(80, dtype=np.float32).reshape(20, 4))
    end = ops.Shape(x, start=1, end=2)
    positions = ops.Slice(table, Constant(np.array([0])), end, Constant(np.array([0])))
    model = Model([ops.Add(x, positions)], [x])
    network = Core().compile_model(model, "CPU")
    for batch, length in ((2, 5), (3, 9), (40, 12), (33, 15), (7, 2)):
        value = np.ones((batch, length, 4), np.float32)
        np.testing.assert_array_equal(network([value])[0], value + table.data[:length])
    assert built(network) == 2


def test_one_plan_serves_lengths_above_those_that_were_seen() -> None:
    x, weights = Parameter(f32, ["n", 16], "x"), np.eye(16, dtype=np.float32)[::-1]
    network = Core().compile_model(Model([ops.MatMul(x, Constant(weights))], [x]), "CPU")
    for length in (100, 90, 300, 250, 799):
        value = np.arange(16 * length, dtype=np.float32).reshape(length, 16)
        np.testing.assert_array_equal(network([value])[0], value[:, ::-1])
    assert built(network) == 2


def test_images_of_many_sizes_keep_the_kernels_that_are_fast_for_them() -> None:
    """One family would run small images with the algorithm of large ones, or the other way round."""
    x = Parameter(f32, [1, 256, "h", "w"], "x")
    weights = Constant(np.random.default_rng(0).normal(size=(256, 256, 3, 3)).astype(np.float32) / 48)
    model = Model([ops.Conv(x, weights, pads=[1, 1, 1, 1])], [x])
    session = onnxruntime.InferenceSession(
        model_to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    network = Core().compile_model(model, "CPU")
    for size in ((5, 7), (6, 6), (7, 5), (40, 30), (33, 44), (2, 3), (36, 35)):
        value = np.random.default_rng(sum(size)).normal(size=(1, 256, *size)).astype(np.float32)
        np.testing.assert_allclose(network([value])[0], session.run(None, {"x": value})[0], rtol=1e-4, atol=1e-4)


def test_a_length_with_another_form_has_plans_of_its_own() -> None:
    """A slice of at most 20 elements is a copy of all of them, or of a part."""
    x = Parameter(f32, [1, "n"], "x")
    cut = ops.Slice(x, *(Constant(np.array([v])) for v in (0, 20, 1, 1)))
    network = Core().compile_model(Model([ops.Relu(cut)], [x]), "CPU")
    for length in (6, 8, 12, 15, 20, 21, 30, 64, 70, 9):
        x_value = np.arange(-3, length - 3, dtype=np.float32)[None]
        np.testing.assert_array_equal(network([x_value])[0], np.maximum(x_value[:, :20], 0))


def test_lengths_that_are_rounded_are_not_taken_for_affine() -> None:
    x = Parameter(f32, [1, 1, "n"], "x")
    pooled = ops.AveragePool(x, kernel_shape=[2], strides=[2])
    network = Core().compile_model(Model([ops.Relu(pooled)], [x]), "CPU")
    for length in (6, 9, 12, 15, 20, 21, 31):
        value = np.arange(length, dtype=np.float32)[None, None]
        np.testing.assert_array_equal(network([value])[0][0, 0], np.arange(0.5, length, 2)[: length // 2])
    assert all(isinstance(each, NoFamily) for each in programs_of(network).families)
    why = network.get_metric("PLANS_PER_SHAPE")
    assert why
    assert all(reason.startswith("AveragePool") for reason in why)
    assert all("is not a polynomial of the lengths" in reason for reason in why)


def test_profiles_output_arrays_and_cancellation() -> None:
    path = FIXTURES / "exports" / "attention_sdpa.dynamo20.dynamic.onnx"
    network = Core().compile_model(path, "CPU", {"PERF_COUNT": True})
    request = network.create_infer_request()
    for length in (4, 6, 9):
        feed = random_inputs(network, 2, length, length)
        expected = network(feed)[0]
        out = np.full(expected.shape, np.nan, np.float32)
        request.set_output_tensor(0, out)
        assert request.infer(feed)[0] is out
        np.testing.assert_array_equal(out, expected)
        assert any(node.op_type in ("Attention", "FusedAttention") for node in request.profiling_info.nodes)
        request.set_output_tensor(0, None)
    assert network.get_property("ARENA_BYTES") > 0
    request.start_async(random_inputs(network, 2, 11, 0))
    request.cancel()
    with contextlib.suppress(Cancelled):
        request.wait(60)
    request.infer(random_inputs(network, 2, 12, 0))


def test_many_threads_with_lengths_of_their_own() -> None:
    network = Core().compile_model(FIXTURES / "exports" / "bert_sdpa.dynamo23.dynamic.onnx", "CPU", {"NUM_STREAMS": 2})
    feeds = [random_inputs(network, 2, length, length) for length in (2, 3, 5, 7, 8, 11, 13, 16)]
    expected = [network(feed)[0].copy() for feed in feeds]
    errors: list[Any] = []

    def work(offset: int) -> None:
        request = network.create_infer_request()
        for turn in range(40):
            index = (turn * 3 + offset) % len(feeds)
            if not np.array_equal(request.infer(feeds[index])[0], expected[index]):
                errors.append(index)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# -- variables ------------------------------------------------------------------------------------------------


def decoder(name: str, device: str = "CPU", bound: int | None = None, config: dict[str, str] | None = None) -> Any:
    core = Core()
    model = core.read_model(FIXTURES / "decoders" / f"{name}.onnx")
    MakeStateful(bound=bound).run_on_model(model)
    return core.compile_model(model, device, config)


def tokens(rng: np.random.Generator, batch: int, past: int, new: int) -> dict[str, Any]:
    return {
        "input_ids": rng.integers(0, 32, (batch, new)),
        "attention_mask": np.ones((batch, past + new), np.int64),
        "position_ids": np.arange(past, past + new)[None].repeat(batch, 0),
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["go", "fork", "rewind"])), min_size=1, max_size=9))
def test_any_parts_of_a_sequence(parts: list[tuple[int, str]]) -> None:
    """Prompts in parts, forks and rewinds, on the device that appends in place and on the one that copies."""
    networks = [decoder_once("CPU"), decoder_once("TEMPLATE")]
    requests = [network.create_infer_request() for network in networks]
    rng = np.random.default_rng(len(parts))
    for new, action in parts:
        if action == "fork":
            requests = [request.fork() for request in requests]
        elif action == "rewind":
            for request in requests:
                request.rewind(min(new, request.length))
        feed = tokens(rng, 1, requests[0].length, new)
        found, expected = (request.infer(feed)["logits"] for request in requests)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


_decoders: dict[str, Any] = {}


def decoder_once(device: str) -> Any:
    if device not in _decoders:
        _decoders[device] = decoder("llama.dynamo23", device)
    return _decoders[device]


@pytest.mark.parametrize(
    "name", ["llama.dynamo20", "llama.dynamo23", "llama.script17", "gpt2.dynamo20", "gpt2.script17"]
)
def test_nothing_is_lowered_after_the_first_token_and_nothing_is_copied(name: str) -> None:
    network = decoder(name)
    request, rng = network.create_infer_request(), np.random.default_rng(0)
    request.infer(tokens(rng, 1, 0, 4))
    request.infer(tokens(rng, 1, 4, 1))
    known = built(network)
    addresses = set()
    for past in range(5, 60):
        request.infer(tokens(rng, 1, past, 1))
        values = request._request.states.values().values()
        addresses.add(tuple(value.group.blocks[value.index].ctypes.data for value in values))
    assert built(network) == known == 2
    assert len(addresses) == 1


NARROW = {"bf16": 2 / 4, "int8": (1 + 4 / 8) / 4}
"""The bytes of a value with rows of 8, relative to f32; int8 adds a scale to each row."""


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("name", ["llama.dynamo20", "gpt2.dynamo23", "gpt2.script17"])
def test_keys_and_values_in_fewer_bits(name: str, precision: str, tmp_path: Path) -> None:
    """Close to f32, and the same after a fork, a rewind, or a state that was saved in f32 and loaded."""
    exact, narrow = decoder(name), decoder(name, config={"KV_CACHE_PRECISION": precision})
    found = []
    for network in (exact, narrow):
        request, rng = network.create_infer_request(), np.random.default_rng(0)
        found.append([request.infer(tokens(rng, 1, 0, 9))["logits"]])
        found[-1] += [request.infer(tokens(rng, 1, past, 1))["logits"] for past in range(9, 30)]
        if network is exact:
            whole = request.query_state()["past_key_values.0.key"].nbytes
    # Keys and values are within 2^-8 of the largest of a row; scores and results are sums of their products.
    error = max(np.abs(a - b).max() for a, b in zip(*found, strict=True))
    assert 0 < error < 4 * 2**-8 * max(np.abs(each).max() for each in found[0])
    key = request.query_state()["past_key_values.0.key"]
    if key.shape[-1] == 8:
        assert key.nbytes == NARROW[precision] * whole
    assert key.get().dtype == np.float32
    request.save(tmp_path / "state")
    loaded, fork = narrow.create_infer_request(), request.fork()
    loaded.load(tmp_path / "state")
    for other in (loaded, fork):
        np.testing.assert_array_equal(other.query_state()["past_key_values.0.key"].get(), key.get())
    rng = np.random.default_rng(1)
    step, longer = tokens(rng, 1, 30, 1), tokens(rng, 1, 30, 2)
    wanted = request.infer(step)["logits"]
    fork.infer(longer)
    fork.rewind(2)
    for other in (loaded, fork):
        np.testing.assert_array_equal(other.infer(step)["logits"], wanted)


def halved(name: str) -> onnx.ModelProto:
    """A decoder with all its f32 in f16."""

    def half(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = np.clip(numpy_helper.to_array(tensor), -65504, 65504).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    proto = onnx.load(FIXTURES / "decoders" / f"{name}.onnx")
    for tensor in proto.graph.initializer:
        half(tensor)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for attribute in (each for node in proto.graph.node for each in node.attribute):
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
        half(attribute.t)
    return proto


@pytest.mark.parametrize("precision", ["f32", "int8"])
@pytest.mark.parametrize("name", ["llama.dynamo20", "llama.dynamo23", "gpt2.dynamo23"])
def test_variables_of_f16_grow_in_place(name: str, precision: str) -> None:
    """They keep f16 unless fewer bits are asked for; the answers equal the reference's, up to f16's rounding."""
    proto, found = halved(name), []
    for device, config in (("CPU", {"KV_CACHE_PRECISION": precision}), ("TEMPLATE", {})):
        model = Core().read_model(proto)
        MakeStateful().run_on_model(model)
        request, rng = Core().compile_model(model, device, config).create_infer_request(), np.random.default_rng(0)
        found.append([request.infer(tokens(rng, 1, 0, 6))["logits"].astype(np.float32)])
        found[-1] += [request.infer(tokens(rng, 1, past, 1))["logits"].astype(np.float32) for past in range(6, 20)]
        state = request.query_state()["past_key_values.0.key"]
        assert state.get().dtype == np.float16
        if device == "CPU":
            assert all(isinstance(value, GrowingArray) for value in request._request.states.values().values())
            size = state.shape[-1]
            assert state.nbytes == np.prod(state.shape) // size * (2 * size if precision == "f32" else size + 4)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=4 * (2**-11 if precision == "f32" else 2**-8) * np.abs(b).max())


def grouped_attention(window: int) -> Any:
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["count"], keepdims=1),
        helper.make_node("Sub", ["count", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "axis"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["qkv", "", "", "past_key_values.0.key", "past_key_values.0.value", "lengths", "total"],
            ["y", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
            local_window_size=window,
        ),
    ]

    def value(name: str, *shape: object, element: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, element, shape)

    pasts = [value(f"past_key_values.0.{part}", "b", 2, "past", 8) for part in ("key", "value")]
    presents = [value(f"present.0.{part}", "b", 2, "all", 8) for part in ("key", "value")]
    mask = value("attention_mask", "b", "all", element=TensorProto.INT64)
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("axis", TensorProto.INT64, [], [1]),
    ]
    outputs = [value("y", "b", "new", 32), *presents]
    graph = helper.make_graph(nodes, "grouped", [value("qkv", "b", "new", 64), mask, *pasts], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("window", [-1, 1, 3])
def test_grouped_attention_in_parts(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask follows from the lengths, so that keys that no query sees cost nothing."""
    recorded: list[Any] = []
    recording = Compiler.recording

    def keep(self: Compiler, *args: Any, **options: Any) -> Any:
        recorded.append(recording(self, *args, **options))
        return recorded[-1]

    monkeypatch.setattr(Compiler, "recording", keep)
    proto, rng = grouped_attention(window), np.random.default_rng(0)
    model = Core().read_model(proto)
    MakeStateful().run_on_model(model)
    request = Core().compile_model(model, "CPU").create_infer_request()
    whole = rng.standard_normal((2, 40, 64)).astype(np.float32)
    none = np.zeros((2, 2, 0, 8), np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {"qkv": whole, "attention_mask": np.ones((2, 40), np.int64)}
    pasts = {f"past_key_values.0.{part}": none for part in ("key", "value")}
    (expected,) = session.run(["y"], {**feed, **pasts})
    start = 0
    for count in (5, 1, 1, 7, 9, 1, 16):
        part = {"qkv": whole[:, start : start + count], "attention_mask": np.ones((2, start + count), np.int64)}
        np.testing.assert_allclose(request.infer(part)["y"], expected[:, start : start + count], rtol=0, atol=TOLERANCE)
        start += count
    steps = [call for each in recorded for call in each.calls if "attention" in getattr(call, "kernel", "")]
    assert steps
    assert {len(step.inputs) for step in steps} == {3}


@pytest.mark.parametrize("precision", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("window", [-1, 300])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_long_past_in_parts(batch: int, window: int, precision: str) -> None:
    """The result of the keys and values that the state has, of which those outside of a window are not read."""
    past, rng = 1500, np.random.default_rng(0)
    model = Core().read_model(grouped_attention(window))
    MakeStateful().run_on_model(model)
    request = Core().compile_model(model, "CPU", {"KV_CACHE_PRECISION": precision}).create_infer_request()
    hidden = 0 if window < 0 else past + 1 - window
    for state in request.query_state().values():
        values = rng.standard_normal((batch, 2, past, 8)).astype(np.float32)
        values[:, :, :hidden] = np.nan
        state.set(values)
    for length in (past + 1, past + 2):
        qkv = rng.standard_normal((batch, 1, 64)).astype(np.float32)
        found = request.infer({"qkv": qkv, "attention_mask": np.ones((batch, length), np.int64)})["y"]
        q = qkv[:, 0, :32].reshape(batch, 2, 2, 1, 8)
        seen = slice(length - window if window > 0 else 0, None)
        k, v = (state.get()[:, :, None, seen].astype(np.float64) for state in request.query_state().values())
        p = np.exp((q * k).sum(-1) / 8**0.5)
        expected = ((p / p.sum(-1, keepdims=True))[..., None] * v).sum(-2).reshape(batch, 1, 32)
        # Scores below 20 are sums of 8 products; results, of weights whose sum is 1 and values below 6.
        atol = np.finfo(np.float32).eps * 6 * (8 * 20 + past**0.5)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_a_past_that_cannot_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One typed error; the state is as before, and goes on once there is memory."""
    rng = np.random.default_rng(0)
    model = Core().read_model(grouped_attention(3))
    MakeStateful().run_on_model(model)
    request, other = (Core().compile_model(model, device).create_infer_request() for device in ("CPU", "TEMPLATE"))

    def step(count: int = 1) -> dict[str, Any]:
        qkv = rng.standard_normal((1, count, 64)).astype(np.float32)
        return {"qkv": qkv, "attention_mask": np.ones((1, request.length + count), np.int64)}

    for count in (40, 1):
        feed = step(count)
        request.infer(feed)
        other.infer(feed)

    def allocate(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(growing._Block, "__init__", allocate)
        before = [state.get() for state in request.query_state().values()]
        with pytest.raises(OutOfMemoryError, match="the request keeps the values that it had"):
            request.infer(step(200))
        for state, wanted in zip(request.query_state().values(), before, strict=True):
            np.testing.assert_array_equal(state.get(), wanted)
    feed = step(200)
    np.testing.assert_allclose(request.infer(feed)["y"], other.infer(feed)["y"], rtol=0, atol=TOLERANCE)


def test_grouped_attention_after_padded_prompts() -> None:
    """Sequences of a batch have lengths of their own, which the mask of a plan in place would not know."""
    rng = np.random.default_rng(0)
    model = Core().read_model(grouped_attention(-1))
    MakeStateful().run_on_model(model)
    requests = [Core().compile_model(model, device).create_infer_request() for device in ("CPU", "TEMPLATE")]
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    for count in (5, 1, 1, 1):
        feed = {"qkv": rng.standard_normal((2, count, 64)).astype(np.float32), "attention_mask": mask}
        found, expected = (request.infer(feed)["y"] for request in requests)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
        mask = np.concatenate([mask, np.ones((2, 1), np.int64)], axis=1)


def test_variables_of_f16_do_not_become_bf16() -> None:
    """It takes as many bits, and is less exact."""
    found = []
    for precision in ("f32", "bf16"):
        model = Core().read_model(halved("llama.dynamo23"))
        MakeStateful().run_on_model(model)
        request = Core().compile_model(model, "CPU", {"KV_CACHE_PRECISION": precision}).create_infer_request()
        rng = np.random.default_rng(0)
        found.append([request.infer(tokens(rng, 1, past, 1))["logits"] for past in range(8)])
    np.testing.assert_array_equal(*found)


def test_a_failed_step_leaves_the_state() -> None:
    """A token out of range fails after all steps have run; what they appended is not part of the state."""
    network = decoder("llama.dynamo23")
    request, rng = network.create_infer_request(), np.random.default_rng(0)
    request.infer(tokens(rng, 1, 0, 4))
    before = {name: state.get() for name, state in request.query_state().items()}
    wrong = tokens(rng, 1, 4, 1)
    wrong["input_ids"][:] = 99
    with pytest.raises(InputError, match="index 99 is out of range"):
        request.infer(wrong)
    for name, state in request.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])
    right = tokens(rng, 1, 4, 1)
    again = network.create_infer_request()
    again.infer(tokens(np.random.default_rng(0), 1, 0, 4))
    np.testing.assert_array_equal(request.infer(right)["logits"], again.infer(right)["logits"])


def test_a_variable_that_others_read_is_copied() -> None:
    """An output shows the past beside the attention, so that the past stays an array."""
    x, past = Parameter(f32, ["b", "new", 2], "x"), Parameter(f32, ["b", "past", 2], "past")
    present = ops.Concat(past, x, axis=1)
    total = ops.ReduceSum(present, Constant(np.array([1])), keepdims=0)
    model = Model([Result(total, "total"), Result(present, "present")], [x, past])
    model.add_variable(Variable("v", "past", "present", np.zeros((1, 0, 2), np.float32), 1, None, 0))
    network = Core().compile_model(model, "CPU")
    request = network.create_infer_request()
    for count in range(1, 9):
        assert request.infer({"x": np.ones((1, 1, 2), np.float32)})["total"].tolist() == [[count, count]]
    assert isinstance(request.query_state()["v"].get(), np.ndarray)


def test_a_sliding_window_over_a_past_of_any_length() -> None:
    """Within the window all keys are seen, later the last ones: plans of two forms."""
    size, window = 4, 6
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    node = helper.make_node(
        "Attention", ["x", "x", "x", "", "past_0", "past_1"], ["y", "present_0", "present_1"],
        is_causal=1, left_window_size=window - 1,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "window",
        [value("x", 1, 2, "new", size), *(value(f"past_{i}", 1, 2, "old", size) for i in range(2))],
        [value("y", 1, 2, "new", size), *(value(f"present_{i}", 1, 2, "all", size) for i in range(2))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)], ir_version=12)
    core, requests = Core(), []
    for device in ("CPU", "TEMPLATE"):
        model = core.read_model(proto)
        MakeStateful({"past_0": "present_0", "past_1": "present_1"}).run_on_model(model)
        requests.append(core.compile_model(model, device).create_infer_request())
    rng = np.random.default_rng(0)
    for new in (3, *[1] * 12, 4, 5):
        x = rng.normal(size=(1, 2, new, size)).astype(np.float32)
        found, expected = (request.infer({"x": x})["y"] for request in requests)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


# -- fits -----------------------------------------------------------------------------------------------------


def test_polynomials_of_two_lengths() -> None:
    samples = [*sample_lengths((2, 3), 2), (50, 70)]
    fit = Fit(samples, 2)
    number = fit.number([5 + 3 * a - b + 2 * a * b + a * a for a, b in samples], "size")
    assert not isinstance(number, int)
    assert number.at((7, 9)) == 5 + 21 - 9 + 126 + 49
    assert fit.number([4] * len(samples), "size") == 4


def test_polynomials_with_three_factors() -> None:
    samples = sample_lengths((2, 2), 3)
    number = Fit(samples, 3).number([7 * a * b * b - 2 * a * a * b + b for a, b in samples], "size")
    assert not isinstance(number, int)
    assert number.at((11, 5)) == 7 * 11 * 25 - 2 * 121 * 5 + 5


@given(
    *(st.lists(st.sampled_from([FACTORS[0], *FACTORS]), min_size=count, max_size=count) for count in (1, 2)),
    st.integers(8, 64), st.integers(8, 512),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_products_of_bounds_and_roundings_are_misfits_or_right(of_a: Any, of_b: Any, most_a: int, most_b: int) -> None:
    """As a mask [batch, length, length] with a bounded part."""

    def value(a: int, b: int) -> int:
        return math.prod(each(a) for each in of_a) * math.prod(each(b) for each in of_b)

    least, most = (2, 2), (most_a, most_b)
    samples = [*sample_lengths(least, 3), *end_lengths(least, most)]
    try:
        number = Fit(samples, 3).number([value(a, b) for a, b in samples], "size")
    except Misfit:
        return
    for a in range(2, most_a + 1):
        for b in range(2, most_b + 1, 1 + most_b // 40):
            assert (number if isinstance(number, int) else number.at((a, b))) == value(a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda n: min(n, 40), lambda n: max(n, 40), lambda n: max(0, n - 5), lambda n: n // 2, lambda n: n // 50,
        lambda n: -(-n // 16) * 16, lambda n: n & 7, lambda n: n.bit_length(), lambda n: int(n > 30), lambda n: n**3,
    ],
)  # fmt: skip
@given(low=st.integers(1, 30), high=st.integers(60, 5000))
@settings(deadline=None)
def test_what_is_no_polynomial_is_a_misfit_or_right(function: Any, low: int, high: int) -> None:
    """Bounds, roundings and steps: a number that is fitted all the same has the right value for each length."""
    samples = [*sample_lengths((low,), 1), (high,)]
    try:
        number = Fit(samples, 1).number([function(n) for (n,) in samples], "size")
    except Misfit:
        return
    for n in range(low, high + 1):
        assert (number if isinstance(number, int) else number.at((n,))) == function(n)


# -- what looks equal at a few lengths --------------------------------------------------------------------------


def check_lengths(model: Model, shape: list[Any], lengths: list[int]) -> Any:
    """One network for all lengths gives what the reference evaluator gives for each."""
    network = Core().compile_model(model, "CPU")
    for length in lengths:
        x = np.arange(np.prod([length if n is None else n for n in shape]), dtype=np.float32)
        value = x.reshape([length if n is None else n for n in shape])
        expected = evaluate_model(model, [value])[0]
        np.testing.assert_allclose(network([value])[0], expected, rtol=1e-6, atol=1e-6, err_msg=f"length {length}")
    return network


def length_of(x: Parameter, axis: int) -> Any:
    return ops.Squeeze(ops.Shape(x, start=axis, end=axis + 1), Constant(np.array([0])))


def numbers(count: Any) -> Any:
    return ops.Range(Constant(np.array(0)), count, Constant(np.array(1)))


def test_constants_with_large_elements_are_compared_element_by_element() -> None:
    """A table with a mask of -1e9 and a bias that depends on the length."""
    x = Parameter(f32, [1, "n"], "x")
    share = ops.Div(ops.Cast(numbers(length_of(x, 1)), to=f32), ops.Cast(length_of(x, 1), to=f32))
    table = ops.Concat(share, Constant(np.array([-1e9], np.float32)), axis=0)
    model = Model([ops.Mul(ops.Concat(x, Constant(np.ones((1, 1), np.float32)), axis=1), table)], [x])
    check_lengths(model, [1, None], [5, 9, 40, 12, 100, 33])


def test_rows_of_constants_are_as_long_as_the_input() -> None:
    """[2, n], which begins with zeros whatever n is."""
    x = Parameter(f32, [2, "n"], "x")
    columns = numbers(length_of(x, 1))
    late = ops.Cast(ops.GreaterOrEqual(columns, Constant(np.array(80))), to=f32)
    table = ops.Expand(late, ops.Shape(x))
    network = check_lengths(Model([ops.Add(x, table)], [x]), [2, None], [100, 120, 50, 90, 85, 300])
    assert any(isinstance(each, FamilyProgram) for each in programs_of(network).families)


@pytest.mark.parametrize("count", ["one", "as many as the input"])
def test_rows_of_a_table_that_begin_at_a_length(count: str) -> None:
    """Positions that a decoder slices from its table, behind those of the past."""
    x = Parameter(f32, ["n", 2], "x")
    length = ops.Shape(x, start=0, end=1)
    added = Constant(np.array([1])) if count == "one" else length
    table = Constant(np.random.default_rng(0).normal(size=(2000, 2)).astype(np.float32))
    rows = ops.Slice(table, length, ops.Add(length, added), Constant(np.array([0])))
    network = check_lengths(Model([ops.Add(x, rows)], [x]), [None, 2], [5, 9, 40, 12, 100, 33, 3])
    assert any(isinstance(each, FamilyProgram) for each in programs_of(network).families)


def test_rows_of_a_table_whose_last_length_is_less_than_the_input() -> None:
    x = Parameter(f32, ["n", 2], "x")
    first = ops.Sub(Constant(np.array([50])), ops.Shape(x, start=0, end=1))
    table = Constant(np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32))
    rows = ops.Slice(table, first, ops.Add(first, Constant(np.array([1]))), Constant(np.array([0])))
    check_lengths(Model([ops.Add(x, rows)], [x]), [None, 2], [5, 9, 40, 12, 50, 33, 3])


def test_constants_that_end_with_those_of_shorter_inputs() -> None:
    """[2, n, n], by the distance of a key from the last query, as T5's bias by relative positions."""
    x = Parameter(f32, [2, "n", "n"], "x")
    places = numbers(length_of(x, 1))
    last = ops.Sub(length_of(x, 1), Constant(np.array(1)))
    table = Constant(np.random.default_rng(0).normal(size=(2, 600)).astype(np.float32))
    bias = ops.Unsqueeze(ops.Gather(table, ops.Sub(last, places), axis=1), Constant(np.array([1])))
    network = check_lengths(Model([ops.Add(x, bias)], [x]), [2, None, None], [5, 9, 40, 12, 100, 33, 3])
    assert any(isinstance(each, FamilyProgram) for each in programs_of(network).families)


def test_remainders_of_lengths_have_a_plan_for_each() -> None:
    x = Parameter(f32, [1, "n"], "x")
    rest = ops.Mod(length_of(x, 1), Constant(np.array(10)))
    is_round = ops.Cast(ops.Equal(rest, Constant(np.array(0))), to=f32)
    network = check_lengths(Model([ops.Add(x, is_round)], [x]), [1, None], [3, 4, 10, 20, 21, 64, 30])
    assert not programs_of(network).families
    assert "Mod" in network.get_metric("PLANS_PER_SHAPE")[0]


def test_a_bound_between_past_and_new_tokens() -> None:
    """min(new, past + 10) rows: right at both ends of a range, and not along its edges."""
    x, past = Parameter(f32, [1, "new", 2], "x"), Parameter(f32, [1, "past", 2], "past")
    end = ops.Add(ops.Shape(past, start=1, end=2), Constant(np.array([10])))
    part = ops.Slice(x, Constant(np.array([0])), end, Constant(np.array([1])))
    requests = []
    for device in ("CPU", "TEMPLATE"):
        model = Model([Result(ops.Relu(part), "part"), Result(ops.Concat(past, x, axis=1), "present")], [x, past])
        model.add_variable(Variable("v", "past", "present", np.zeros((1, 0, 2), np.float32), 1, None, 0))
        requests.append(Core().compile_model(model, device).create_infer_request())
    for first, news in ((1, (40, 3, 60, 5)), (2, (30, 12, 13, 50)), (30, (7, 45, 4))):
        for request in requests:
            request.reset_state()
        for new in (first, *news):
            value = np.random.default_rng(new).normal(size=(1, new, 2)).astype(np.float32)
            found, expected = (request.infer({"x": value})["part"] for request in requests)
            np.testing.assert_array_equal(found, expected)


def test_profiles_of_plans_that_copy_constants() -> None:
    network = Core().compile_model(FIXTURES / "exports" / "rotary.dynamo20.dynamic.onnx", "CPU", {"PERF_COUNT": True})
    for length in (3, 9, 5):
        network(random_inputs(network, 2, length, 0))


def test_batches_and_lengths_that_vary_together() -> None:
    network = Core().compile_model(FIXTURES / "exports" / "layer_norm.script17.dynamic.onnx", "CPU")
    other = Core().compile_model(FIXTURES / "exports" / "layer_norm.script17.dynamic.onnx", "TEMPLATE")
    for seed, (batch, length) in enumerate(((2, 5), (3, 9), (4, 16), (7, 2), (2, 12), (5, 5))):
        feed = random_inputs(network, batch, length, seed)
        np.testing.assert_allclose(network(feed)[0], other(feed)[0], rtol=TOLERANCE, atol=TOLERANCE)
    assert built(network) == 2


@pytest.mark.parametrize("shape", [(1, 16, 0, 8), (1, 16, 0, 0), (1, 16, 8, 0)])
def test_depthwise_convolutions_of_no_pixels(shape: tuple[int, ...]) -> None:
    x = Parameter(f32, [1, 16, "h", "w"], "x")
    weights = Constant(np.ones((16, 1, 3, 3), np.float32))
    network = Core().compile_model(Model([ops.Conv(x, weights, group=16, pads=[1, 1, 1, 1])], [x]), "CPU")
    assert network([np.zeros(shape, np.float32)])[0].shape == shape


# -- what is said about lengths ----------------------------------------------------------------------------------


def said(model: Any) -> tuple[str, ...]:
    lines: tuple[str, ...] = Core().compile_model(model, "CPU").get_metric("VARYING_LENGTHS")
    return lines


def test_lengths_that_one_plan_serves_are_said_to_be_so() -> None:
    batch, length, both = said(FIXTURES / "exports" / "bert_sdpa.dynamo23.dynamic.onnx")
    assert batch.startswith("batch: one plan (2 to ")
    assert length == "length: one plan (2 to 16 were tried)"  # its table of positions ends there
    assert both.startswith("batch and length, independently: one plan (")


def test_the_node_that_needs_a_plan_for_each_length_is_named() -> None:
    x = Parameter(f32, ["batch", 1, "n"], "x")
    pooled = ops.MaxPool(x, kernel_shape=[2], strides=[2])
    pooled.friendly_name = "halves"
    batch, length = said(Model([ops.Relu(pooled)], [x]))
    assert batch.startswith("batch: one plan (2 to ")
    assert length.startswith("n: a plan for each value: halves: attribute out of max_pool_f32 is ")
    rest = ops.Mod(length_of(x, 2), Constant(np.array(10)))
    rest.friendly_name = "remainder"
    (line,) = said(Model([ops.Add(x, ops.Cast(rest, to=f32))], [x]))
    assert line.startswith("batch, n: a plan for each value: Mod `remainder`: ")


def test_lengths_that_must_be_equal_vary_together() -> None:
    x, y = Parameter(f32, [2, "n"], "x"), Parameter(f32, [2, "m"], "y")
    (line,) = said(Model([ops.MatMul(x, ops.Transpose(y, perm=[1, 0]))], [x, y]))
    assert line.startswith("n and m: one plan (2 to ")


def test_nothing_is_said_about_known_lengths_and_of_unknown_ranks_only_that() -> None:
    x, y = Parameter(f32, [2, 3], "x"), Parameter(f32, None, "y")
    assert said(Model([ops.Relu(x)], [x])) == ()
    assert said(Model([ops.Relu(y)], [y])) == (
        "the rank of an input is unknown: a plan for each combination of shapes",
    )
