"""Adapters (LoRA) of language models: they give what merged weights give, and wrong ones change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from engine import Core
from engine.errors import AdapterError, EngineError, InputError, UnsupportedError
from engine.generation import Adapter, Generator, PromptLookup, Scheduler, read_adapter
from engine.ir import bf16
from engine.onnx import write_model
from engine.passes import MakeAdaptable, MakeStateful, compress_weights
from engine.passes.common.convert_precision import ConvertPrecision

DECODERS = Path(__file__).parent / "fixtures" / "decoders"
PROMPT = [3, 14, 15, 9]
LAYERS, WIDTH, INNER = 2, 16, 24
# Each layer has sums of at most 24 products of values below 1, as have the decoders without adapters (1e-6), two sums
# of 24 and of 5 for a branch, and a merged matrix rounds each of 24 elements once more: 24 -> 24 + 24 + 5 + 24.
TOLERANCE = 1e-6 * (24 + 24 + 5 + 24) / 24
LLAMA = {"q": (16, 16), "k": (16, 8), "v": (16, 8), "o": (16, 16)}
SIZES = {
    "llama.script17": {
        **{f"model.layers.{i}.self_attn.{part}_proj": size for i in range(LAYERS) for part, size in LLAMA.items()},
        **{f"model.layers.{i}.mlp.{part}_proj": (16, 24) for i in range(LAYERS) for part in ("gate", "up")},
        **{f"model.layers.{i}.mlp.down_proj": (24, 16) for i in range(LAYERS)},
    },
    "gpt2.script17": {
        f"transformer.h.{i}.{name}": size
        for i in range(LAYERS)
        for name, size in {
            "attn.c_attn": (16, 48), "attn.c_proj": (16, 16), "mlp.c_fc": (16, 24), "mlp.c_proj": (24, 16),
        }.items()
    },
    # Without the names of modules, the names of products.
    "llama.dynamo23": {"node_linear": (16, 16), "node_linear_2": (16, 8), "node_linear_6": (24, 16)},
}  # fmt: skip
"""Modules of the fixtures: the sizes of their matrices."""


def matrices(sizes: Mapping[str, tuple[int, int]], rank: int, seed: int) -> dict[str, tuple[Any, Any]]:
    random = np.random.default_rng(seed)
    return {
        name: (
            random.uniform(-1, 1, (rows, rank)).astype(np.float32) / 4,
            random.uniform(-1, 1, (rank, columns)).astype(np.float32) / 4,
        )
        for name, (rows, columns) in sizes.items()
    }


def adapter(name: str = "llama.script17", rank: int = 3, seed: int = 0, only: str = "") -> Adapter:
    sizes = {path: size for path, size in SIZES[name].items() if only in path}
    return Adapter(f"of seed {seed}", matrices(sizes, rank, seed))


def network(name: str = "llama.script17", device: str = "CPU", rank: int = 16, bits: str = "") -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    if bits:
        model = compress_weights(model, bits, group=8, least=8).model
    MakeStateful().run_on_model(model)
    MakeAdaptable(rank=rank).run_on_model(model)
    return core.compile_model(model, device)


@pytest.fixture(scope="module")
def llama() -> Any:
    return network()


def merged(proto: Any, used: Adapter) -> bytes:
    """The model with matrices W + A B, which onnxruntime adds."""
    found = set()
    nodes = []
    for node in proto.graph.node:
        for path, (a, b) in used.modules.items():
            inner = "/" + path.removeprefix("model.").removeprefix("transformer.").replace(".", "/").replace(
                "layers/", "layers."
            ).replace("h/", "h.")
            if node.op_type in ("MatMul", "Gemm") and (node.name == path or f"{inner}/" in node.name):
                turned = any(each.name == "transB" and each.i for each in node.attribute)
                proto.graph.initializer.append(numpy_helper.from_array((a @ b).T if turned else a @ b, f"{path}.AB"))
                nodes.append(helper.make_node("Add", [node.input[1], f"{path}.AB"], [f"{path}.merged"]))
                node.input[1] = f"{path}.merged"
                found.add(path)
        nodes.append(node)
    assert found == used.modules.keys()
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    made: bytes = proto.SerializeToString()
    return made


def logits_of(model: bytes, tokens: list[int]) -> Any:
    """The logits of the last token by onnxruntime, which computes all tokens at once."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    given: dict[str, Any] = {
        "input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64),
        "position_ids": np.arange(len(tokens))[None],
    }  # fmt: skip
    for each in session.get_inputs():
        if len(each.shape) == 4:
            given[each.name] = np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
    names = {each.name for each in session.get_inputs()}
    return session.run(["logits"], {key: value for key, value in given.items() if key in names})[0][0, -1]


def expected(name: str, used: Adapter | None, tokens: list[int]) -> Any:
    proto = onnx.load(DECODERS / f"{name}.onnx")
    return logits_of(proto.SerializeToString() if used is None else merged(proto, used), tokens)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def cases() -> list[Any]:
    found = [pytest.param(name, "CPU") for name in SIZES]
    found += [pytest.param("gpt2.script17", "TEMPLATE"), pytest.param("llama.script17", "HETERO:CPU,TEMPLATE")]
    return [*found, pytest.param("llama.script17", "OPENCL", marks=[pytest.mark.opencl, pytest.mark.slow])]


@pytest.mark.parametrize(("name", "device"), cases())
def test_logits_are_those_of_merged_weights(name: str, device: str) -> None:
    if device == "OPENCL" and device not in Core().available_devices:
        pytest.skip("no OpenCL device")
    used, compiled = adapter(name), network(name, device)
    generator = Generator(compiled, adapter=used)
    generator.append(PROMPT)
    close(generator.logits()[0], expected(name, used, PROMPT))
    generator.append([7])
    close(generator.logits()[0], expected(name, used, [*PROMPT, 7]))
    plain = Generator(compiled)
    plain.append(PROMPT)
    close(plain.logits()[0], expected(name, None, PROMPT))
    assert np.abs(expected(name, used, PROMPT) - expected(name, None, PROMPT)).max() > 100 * TOLERANCE


@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_compressed_weights(bits: str, tmp_path: Path) -> None:
    core, used = Core(), adapter()
    model = compress_weights(core.read_model(DECODERS / "llama.script17.onnx"), bits, group=8, least=8).model
    write_model(model, tmp_path / "compressed.onnx")
    wanted = logits_of(merged(onnx.load(tmp_path / "compressed.onnx"), used), PROMPT)
    generator = Generator(network(bits=bits), adapter=used)
    generator.append(PROMPT)
    close(generator.logits()[0], wanted)


def test_several_adapters_in_one_batch(llama: Any) -> None:
    """Of different ranks and modules, beside a sequence without one, with prompts of different lengths."""
    first, second = adapter(rank=5, seed=1), adapter(rank=2, seed=2, only="q_proj")
    prompts, used = [PROMPT, [7], [1, 2, 8], [5, 5]], [first, None, second, first]
    generator = Generator(llama, adapter=used)
    generator.append(prompts)
    for row, found in enumerate(generator.logits()):
        close(found, expected("llama.script17", used[row], prompts[row]))
    order = [2, 0, 0, 1]
    generator.reorder(order)
    generator.append([[4]] * 4)
    for row, found in zip(order, generator.logits(), strict=True):
        close(found, expected("llama.script17", used[row], [*prompts[row], 4]))
    with pytest.raises(InputError, match="adapter has 2 elements; expected one for each of 4 sequences"):
        generator.adapter = [first, second]
    with pytest.raises(InputError, match="adapter has 2 elements; expected one for each of 1 sequences"):
        Generator(llama, adapter=[first, second]).append(PROMPT)


def test_another_adapter_at_any_time(llama: Any) -> None:
    first, second = adapter(seed=1), adapter(seed=2)
    generator = Generator(llama, adapter=first)
    generator.append(PROMPT)
    generator.logits()
    fork = generator.fork()
    generator.adapter = second
    assert (generator.adapter, fork.adapter) == (second, first)
    fork.append([7])
    close(fork.logits()[0], expected("llama.script17", first, [*PROMPT, 7]))
    generator.reset()
    generator.append(PROMPT)
    close(generator.logits()[0], expected("llama.script17", second, PROMPT))
    generator.reset()
    generator.adapter = None
    generator.append(PROMPT)
    close(generator.logits()[0], expected("llama.script17", None, PROMPT))


@pytest.fixture(scope="module")
def on_template() -> Any:
    return network(device="TEMPLATE")


POOL = (None, adapter(rank=5, seed=1), adapter(rank=2, seed=2, only="q_proj"), adapter(rank=3, seed=3, only="mlp"))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "swap", "rewind", "fork", "reorder"]), st.integers(0, 2**31)), max_size=8
)


@given(count=st.integers(1, 3), seed=st.integers(0, 2**31), operations=OPERATIONS)
@settings(max_examples=10, deadline=None)
def test_whatever_is_done_all_devices_agree(
    llama: Any, on_template: Any, count: int, seed: int, operations: list[tuple[str, int]]
) -> None:
    """Any order of prompts, tokens, other adapters, rewinding, forking and reordering."""
    random = np.random.default_rng(seed)
    pair = [Generator(compiled, adapter=POOL[seed % 4]) for compiled in (llama, on_template)]
    prompts = [random.integers(0, 32, random.integers(1, 5)).tolist() for _ in range(count)]
    for name, value in [("prompt", 0), *operations]:
        random = np.random.default_rng(value)
        each = [POOL[i] for i in random.integers(0, 4, count)]
        tokens = random.integers(0, 32, (count, 1 + value % 2))
        order = random.integers(0, count, count).tolist()
        if name == "fork":
            pair = [generator.fork() for generator in pair]
        for generator in pair:
            if name == "swap":
                generator.adapter = each if value % 2 else each[0]
            elif name == "rewind" and len(generator.tokens[0]) > 5:
                generator.rewind(1)
            elif name == "reorder":
                generator.reorder(order)
            generator.append(prompts if name == "prompt" else tokens)
        close(*(generator.logits() for generator in pair))


def test_a_repeated_sequence_and_proposed_tokens() -> None:
    """Each way of a repeated sequence has its adapter; proposals are checked with the adapter, also after another."""
    used, other = adapter(), adapter(seed=1)
    compiled = network()
    repeated = Generator(compiled, adapter=[used])
    repeated.append(PROMPT)
    repeated.repeat(3)
    assert repeated.adapter == [used] * 3
    close(repeated.logits()[2], expected("llama.script17", used, PROMPT))
    plain, ahead = Generator(compiled, adapter=used), Generator(compiled, adapter=used, draft=PromptLookup())
    text = [3, 14, 15, 9] * 4
    for generator in (plain, ahead):
        generator.append(text)
        generator.step()
        generator.adapter = other
    for _ in range(6):
        assert plain.step() == ahead.step()


def test_a_network_for_a_fixed_number_of_ranks() -> None:
    """As devices without varying lengths need it."""
    core = Core()
    model = core.read_model(DECODERS / "llama.script17.onnx")
    MakeStateful().run_on_model(model)
    MakeAdaptable().run_on_model(model)
    shapes: dict[str | int, Any] = {
        p.friendly_name: [8 if dim.symbol == "adapter_rank" else dim for dim in p.output(0).shape]
        for p in model.parameters
        if "lora" in p.friendly_name or p.friendly_name == "adapter_mask"
    }
    model.reshape(shapes)
    generator = Generator(core.compile_model(model, "CPU"))
    for used in (None, adapter()):
        generator.reset()
        generator.adapter = used
        generator.append(PROMPT)
        close(generator.logits()[0], expected("llama.script17", used, PROMPT))


def test_a_joined_projection_of_a_checkpoint() -> None:
    """Phi-3 has one module for queries, keys and values; the network may have three."""
    sizes = {"model.layers.0.self_attn.qkv_proj": (16, 32)}
    joined = Adapter("joined", matrices(sizes, 2, 0))
    a, b = joined.modules["model.layers.0.self_attn.qkv_proj"]
    ends = {"q": (0, 16), "k": (16, 24), "v": (24, 32)}
    parts = Adapter("parts", {f"model.layers.0.self_attn.{p}_proj": (a, b[:, i:j]) for p, (i, j) in ends.items()})
    generator = Generator(network(), adapter=joined)
    generator.append(PROMPT)
    close(generator.logits()[0], expected("llama.script17", parts, PROMPT))


def test_a_model_in_f16() -> None:
    """The matrices are rounded as the model is; what f16 cannot hold is refused."""
    core, used = Core(), adapter()
    model = core.read_model(DECODERS / "llama.script17.onnx")
    ConvertPrecision().run_on_model(model)
    MakeStateful().run_on_model(model)
    MakeAdaptable().run_on_model(model)
    generator = Generator(core.compile_model(model, "CPU"), adapter=used)
    generator.append(PROMPT)
    wanted = expected("llama.script17", used, PROMPT)
    np.testing.assert_allclose(generator.logits()[0], wanted, rtol=0, atol=TOLERANCE * 2**13)  # 13 bits fewer
    with pytest.raises(AdapterError, match="elements beyond the range of float16, the type of the model"):
        generator.adapter = Adapter("large", {Q: (np.full((16, 1), 1e5), np.ones((1, 16)))})
    assert generator.adapter is used


# -- files -----------------------------------------------------------------------------------------------------


def write_folder(folder: Path, config: Any, tensors: Mapping[str, Any]) -> Path:
    """As PEFT writes it."""
    folder.mkdir(exist_ok=True)
    header, data = {}, b""
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64"}
    for name, value in tensors.items():
        raw = value.tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kinds[value.dtype.name], "shape": list(value.shape), "data_offsets": span}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def tensors_of(path: str, rows: int, rank: int, columns: int, dtype: Any = np.float32) -> dict[str, Any]:
    random = np.random.default_rng(rank)
    return {
        f"base_model.model.{path}.lora_A.weight": random.normal(size=(rank, rows)).astype(dtype),
        f"base_model.model.{path}.lora_B.weight": random.normal(size=(columns, rank)).astype(dtype),
    }


Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, bf16.numpy])
def test_scales_and_ranks_of_modules(tmp_path: Path, dtype: Any) -> None:
    config = PLAIN | {"rank_pattern": {"down_proj": 2, "proj": 9}, "alpha_pattern": {f"^{Q}": 3, "q_proj": 5}}
    tensors = tensors_of(Q, 16, 9, 16, dtype) | tensors_of(DOWN, 24, 2, 16, dtype) | tensors_of("proj", 3, 9, 3, dtype)
    config["rank_pattern"] |= {"q_proj": 9}
    for is_root in (False, True):
        found = read_adapter(write_folder(tmp_path / "a", config | {"use_rslora": is_root}, tensors))
        assert found.rank == 9
        for path, rank, alpha in ((Q, 9, 3), (DOWN, 2, 16), ("proj", 9, 16)):
            a, b = found.modules[path]
            scale = alpha / (rank**0.5 if is_root else rank)
            np.testing.assert_array_equal(a, tensors[f"base_model.model.{path}.lora_A.weight"].T.astype(np.float32))
            wanted = tensors[f"base_model.model.{path}.lora_B.weight"].T.astype(np.float64) * scale
            np.testing.assert_allclose(b, wanted, rtol=2.0**-23)


def test_a_folder_is_what_its_matrices_are(tmp_path: Path, llama: Any) -> None:
    used = adapter(rank=4)
    tensors = {}
    for path, (a, b) in used.modules.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = np.ascontiguousarray(a.T)
        tensors[f"base_model.model.{path}.lora_B.weight"] = np.ascontiguousarray(b.T / 4)  # exact
    generator = Generator(llama, adapter=read_adapter(write_folder(tmp_path / "a", PLAIN, tensors)))
    generator.append(PROMPT)
    close(generator.logits()[0], expected("llama.script17", used, PROMPT))


GOOD = tensors_of(Q, 16, 4, 16)
A, B = GOOD


def edited(**changes: Any) -> dict[str, Any]:
    """The tensors with other values of A or B; None leaves one out."""
    made = {A: changes.get("a", GOOD[A]), B: changes.get("b", GOOD[B])}
    return {key: value for key, value in made.items() if value is not None}


def with_value(value: float) -> Any:
    made = GOOD[B].copy()
    made[0, 0] = value
    return made


@pytest.mark.parametrize(
    ("config", "tensors", "error", "message"),
    [
        (PLAIN, edited(b=None), AdapterError, "has lora_A and no lora_B; expected both"),
        (PLAIN, edited(a=None), AdapterError, "has lora_B and no lora_A; expected both"),
        (PLAIN, {}, AdapterError, "has no modules"),
        (PLAIN, edited(b=with_value(np.nan)), AdapterError, f"B of module `{Q}` has NaN"),
        (PLAIN, edited(b=with_value(np.inf)), AdapterError, "B of module .* has NaN or infinite"),
        (PLAIN | {"lora_alpha": 1e9}, edited(b=with_value(1e38)), AdapterError, "beyond the range of f32"),
        (PLAIN | {"r": 8}, GOOD, AdapterError, r"lora_A \[4, 16\] and lora_B \[16, 4\], and rank 8"),
        (PLAIN, edited(a=GOOD[A][:3]), AdapterError, "and rank 4 in adapter_config.json; expected"),
        (PLAIN, edited(a=GOOD[A].ravel()), AdapterError, r"lora_A \[64\]"),
        (PLAIN, edited(a=GOOD[A].astype(np.int64)), AdapterError, "is int64"),
        (PLAIN | {"rank_pattern": {"q_proj": 2}}, GOOD, AdapterError, "rank 2 in adapter_config.json"),
        (PLAIN | {"r": 0}, GOOD, AdapterError, "`r` is 0; expected a whole number above 0"),
        (PLAIN | {"r": "4"}, GOOD, AdapterError, "`r` is '4'"),
        (PLAIN | {"lora_alpha": -1}, GOOD, AdapterError, "`lora_alpha` is -1"),
        (PLAIN | {"lora_alpha": float("nan")}, GOOD, AdapterError, "`lora_alpha` is nan"),
        (PLAIN | {"use_rslora": "yes"}, GOOD, AdapterError, "`use_rslora` is 'yes'"),
        (PLAIN | {"alpha_pattern": [1]}, GOOD, AdapterError, "`alpha_pattern` is"),
        (PLAIN | {"alpha_pattern": {"(a+)+b": 1}}, GOOD, UnsupportedError, "has the regular expression"),
        (PLAIN | {"use_dora": True}, GOOD, UnsupportedError, "`use_dora` is True, a variant of LoRA"),
        (PLAIN | {"bias": "lora_only"}, GOOD, UnsupportedError, "`bias` is 'lora_only'"),
        (PLAIN | {"modules_to_save": ["lm_head"]}, GOOD, UnsupportedError, "`modules_to_save` is"),
        (PLAIN | {"init_lora_weights": "pissa"}, GOOD, UnsupportedError, "`init_lora_weights` is 'pissa'"),
        (PLAIN | {"peft_type": "IA3"}, GOOD, UnsupportedError, "`peft_type` is 'IA3'; expected 'LORA'"),
        (PLAIN | {"use_new": {"x": 1}}, GOOD, UnsupportedError, "the option `use_new` .* is unknown"),
        (PLAIN, GOOD | {f"{Q}.bias": GOOD[A]}, UnsupportedError, f"has a tensor `{Q}.bias`; expected"),
        ("[1]", GOOD, AdapterError, "is a list; expected an object"),
        ("{", GOOD, AdapterError, "cannot be read"),
        ("[" * 100000, GOOD, AdapterError, "adapter_config.json"),
    ],
)  # fmt: skip
def test_wrong_folders(tmp_path: Path, config: Any, tensors: Any, error: type[EngineError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_adapter(write_folder(tmp_path / "a", config, tensors))


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config.json cannot be read"):
        read_adapter(tmp_path / "none")
    folder = write_folder(tmp_path / "a", PLAIN, GOOD)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for length in (0, 4, 40, len(whole) - 1):
        weights.write_bytes(whole[:length])
        with pytest.raises(AdapterError, match=r"empty|truncated|at least 8|not JSON"):
            read_adapter(folder)
    weights.unlink()
    with pytest.raises(AdapterError, match="cannot be opened"):
        read_adapter(folder)


# -- adapters that do not fit ------------------------------------------------------------------------------------


def of(path: str, rows: int, columns: int, rank: int = 2) -> Adapter:
    return Adapter("wrong", matrices({path: (rows, columns)}, rank, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of("model.layers.7.self_attn.q_proj", 16, 16), "layers.7.self_attn.q_proj` .* is not one that"),
        (lambda: of("model.layers.0.self_attn.q_proj", 16, 8), "maps 16 values to 8; .* maps 16 to 16: the"),
        (lambda: of("model.layers.0.self_attn.q_proj", 8, 16), "maps 8 values to 16"),
        (lambda: of("lm_head", 16, 32), "`lm_head` .* is not one that the network adapts"),
        (lambda: of("q_proj", 16, 16), "`q_proj` of adapter `wrong` is any of"),
        (lambda: of("model.layers.0.self_attn.q_proj", 16, 16, 17), "ranks of 17 together; the network takes 16"),
        (lambda: of("model.layers.0.self_attn.qkv_proj", 16, 30), "is not one that the network adapts"),
        (lambda: Adapter("twice", matrices({Q: (16, 16), Q.removeprefix("model."): (16, 16)}, 1, 0)), "several"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_changes_nothing(llama: Any, make: Callable[[], Adapter], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        Generator(llama, adapter=make())
    used = adapter()
    generator = Generator(llama, adapter=used)
    generator.append(PROMPT)
    generator.logits()
    with pytest.raises(AdapterError, match=message):
        generator.adapter = make()
    assert generator.adapter is used
    generator.append([7])
    close(generator.logits()[0], expected("llama.script17", used, [*PROMPT, 7]))


def test_the_ranks_of_all_adapters_count(llama: Any) -> None:
    with pytest.raises(AdapterError, match="ranks of 18 together; the network takes 16"):
        Generator(llama, adapter=[adapter(rank=9, seed=1), None, adapter(rank=9, seed=2)])
    same = adapter(rank=9)
    Generator(llama, adapter=[same, same])


def test_a_network_that_takes_none() -> None:
    core = Core()
    model = core.read_model(DECODERS / "llama.script17.onnx")
    MakeStateful().run_on_model(model)
    compiled = core.compile_model(model, "CPU")
    with pytest.raises(AdapterError, match=r"takes no adapters; run engine\.passes\.MakeAdaptable"):
        Generator(compiled, adapter=adapter())


def test_sequences_of_a_scheduler(llama: Any) -> None:
    """Each has its adapter, whatever others join its batch; together the adapters have more ranks than fit."""
    used = [adapter(rank=7, seed=seed) for seed in range(3)]
    each = [used[i] if i < 3 else None for i in (0, 1, 2, 3, 0, 2)]
    prompts = [PROMPT, [7], [1, 2, 8], [5, 5], [3, 3], [9, 1]]
    alone = [
        Generator(llama, adapter=chosen).generate(prompt, 8)[0] for prompt, chosen in zip(prompts, each, strict=True)
    ]
    with Scheduler(llama, slots=6) as scheduler:
        streams = [scheduler.submit(p, 8, adapter=chosen) for p, chosen in zip(prompts, each, strict=True)]
        assert [stream.result() for stream in streams] == alone


def test_a_prefix_is_of_one_adapter(llama: Any) -> None:
    """Keys and values that another adapter gave are not reused."""
    first, second = adapter(seed=1), adapter(seed=2)
    prompt = [(7 * i) % 32 for i in range(20)]
    with Scheduler(llama, prefix_cache_bytes=1 << 20) as scheduler:
        for chosen, reused in ((first, False), (second, False), (None, False), (first, True), (second, True)):
            stream = scheduler.submit(prompt, 4, adapter=chosen)
            assert stream.result() == Generator(llama, adapter=chosen).generate(prompt, 4)[0]
            assert (stream.reused > 0) == reused


def test_a_submission_with_a_wrong_adapter(llama: Any) -> None:
    with Scheduler(llama) as scheduler:
        with pytest.raises(AdapterError, match="is not one that the network adapts"):
            scheduler.submit(PROMPT, adapter=of("other", 16, 16))
        with pytest.raises(AdapterError, match="ranks of 17 together"):
            scheduler.submit(PROMPT, adapter=of(Q, 16, 16, 17))
        with pytest.raises(InputError, match="expected an Adapter"):
            scheduler.submit(PROMPT, adapter="folder")  # type: ignore[arg-type]
        assert scheduler.submit(PROMPT, 4).result() == Generator(llama).generate(PROMPT, 4)[0]


def test_what_is_not_an_adapter(llama: Any) -> None:
    for wrong in ("folder", [1], 3):
        with pytest.raises(InputError, match="expected an Adapter"):
            Generator(llama, adapter=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((16, 2)), np.ones((3, 16)), r"has A \[16, 2\] and B \[3, 16\]; expected"),
        (np.ones((16, 0)), np.ones((0, 16)), "of one rank above 0"),
        (np.ones(16), np.ones((1, 16)), r"has A \[16\]"),
        (np.ones((16, 1)), np.full((1, 16), np.nan), "B of module `x` has NaN"),
    ],
)
def test_matrices_that_are_not_an_adapter(a: Any, b: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        Adapter("made", {"x": (a, b)})
