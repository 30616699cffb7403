"""Language models as exporters write them, token by token: requests keep the past and return onnxruntime's logits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import Core
from engine.errors import InferError, StateError
from engine.passes import MakeStateful

DECODERS = sorted((Path(__file__).parent / "fixtures" / "decoders").glob("*.onnx"))
DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE", "OPENCL")
VOCABULARY = 32
ROOM = 16  # of caches of a fixed length
# Sums of at most 24 products per layer, of values below 1, in f32: 2 layers and the head.
TOLERANCE = 1e-6


class Peer:
    """onnxruntime with the model as it was exported: the past is passed in and returned by each call."""

    def __init__(self, path: Path, batch: int) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # onnxruntime warns that TensorScatter copies
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.past: dict[str, Any] = {
            each.name: np.zeros((batch, each.shape[1], ROOM if is_static(path) else 0, each.shape[3]), np.float32)
            for each in self.session.get_inputs()
            if each.name.startswith(("past_key_values", "key_cache", "value_cache"))
        }

    def infer(self, inputs: dict[str, Any]) -> Any:
        """The logits; the present becomes the past."""
        logits, *present = self.session.run(None, {**inputs, **self.past})
        self.past = dict(zip(self.past, present, strict=True))
        return logits


def is_static(path: Path) -> bool:
    """Whether the model writes into caches of a fixed length."""
    return path.name.startswith(("llama_static", "llama_scatter"))


GROWING = [path for path in DECODERS if not is_static(path)]


def step(path: Path, generator: np.random.Generator, batch: int, past: int, new: int) -> dict[str, Any]:
    """Inputs for `new` random tokens after `past` ones."""
    positions = np.arange(past, past + new)
    inputs = {
        "input_ids": generator.integers(0, VOCABULARY, (batch, new)),
        "position_ids": positions[None].repeat(batch, 0),
    }
    if path.name.startswith("llama_scatter"):
        return inputs | {"write_indices": np.full(batch, past), "nonpad_kv_seqlen": np.full(batch, past + new)}
    width = ROOM if is_static(path) else past + new
    inputs["attention_mask"] = (np.arange(width) < past + new).astype(np.int64)[None].repeat(batch, 0)
    return inputs | ({"cache_position": positions} if is_static(path) else {})


def cases() -> list[Any]:
    """Each model on each device; on OPENCL, which plans anew for each length of a past that grows, one of those.

    By default all run on CPU, and every fourth on each other device, each device having others.
    """
    found = []
    for index, path in enumerate(DECODERS):
        for number, device in enumerate(DEVICES):
            is_growing_opencl = device == "OPENCL" and not is_static(path)
            if is_growing_opencl and path.name != "llama.dynamo23.onnx":
                continue
            marks = [pytest.mark.opencl] if device == "OPENCL" else []
            if is_growing_opencl or (device != "CPU" and index % len(DEVICES) != number):
                marks.append(pytest.mark.slow)
            found.append(pytest.param(path, device, marks=marks, id=f"{path.stem}-{device}"))
    return found


@pytest.fixture(params=DECODERS, ids=lambda path: path.name.removesuffix(".onnx"))
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


@pytest.fixture
def compiled(path: Path) -> Callable[[str], Any]:
    """Compiles the stateful model for a device."""

    def compiled(device: str) -> Any:
        core = Core()
        if device not in (*core.available_devices, "HETERO:CPU,TEMPLATE"):
            pytest.skip(f"no device {device}")
        model = core.read_model(path)
        MakeStateful().run_on_model(model)
        axes = [(variable.axis, variable.written_axis) for variable in model.variables]
        assert axes == [(None, 2) if is_static(path) else (2, None)] * 4
        return core.compile_model(model, device)

    return compiled


@pytest.mark.parametrize(("path", "device"), cases(), indirect=["path"])
def test_tokens_after_a_prompt(path: Path, compiled: Callable[[str], Any], device: str) -> None:
    network = compiled(device)
    assert {port.name for port in network.inputs} == set(step(path, np.random.default_rng(0), 1, 0, 1))
    assert [port.name for port in network.outputs] == ["logits"]
    for batch in (1, 2):
        peer, request, generator = Peer(path, batch), network.create_infer_request(), np.random.default_rng(batch)
        past = 0
        for new in (5, 1, 1, 3):
            inputs = step(path, generator, batch, past, new)
            np.testing.assert_allclose(request.infer(inputs)["logits"], peer.infer(inputs), rtol=0, atol=TOLERANCE)
            past += new
        assert request.length == (0 if is_static(path) else past)
        for name, state in request.query_state().items():
            np.testing.assert_allclose(state.get(), peer.past[name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("path", "device"), [case for case in cases() if is_static(case.values[0])], indirect=["path"])
def test_a_write_beyond_the_cache_changes_nothing(path: Path, compiled: Callable[[str], Any], device: str) -> None:
    request, generator = compiled(device).create_infer_request(), np.random.default_rng(0)
    request.infer(step(path, generator, 1, 0, 14))
    before = {name: state.get() for name, state in request.query_state().items()}
    inputs = step(path, generator, 1, 14, 3)
    with pytest.raises(InferError, match=r"out of (range|bounds)"):
        request.infer(inputs)
    for name, state in request.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])
    request.infer(step(path, generator, 1, 14, 2))


def test_other_tokens_after_a_rewind(path: Path, compiled: Callable[[str], Any]) -> None:
    """Rewinding and forking give what a new request gives for the same tokens; caches of a fixed length are written
    again where they were.
    """
    network, generator = compiled("CPU"), np.random.default_rng(0)
    prompt, first, second = (step(path, generator, 1, past, new) for past, new in ((0, 4), (4, 1), (4, 1)))
    request, other = network.create_infer_request(), network.create_infer_request()
    request.infer(prompt)
    fork = request.fork()
    request.infer(first)
    if is_static(path):
        with pytest.raises(StateError, match=r"`.*0.*` has a fixed length.*pass the earlier positions again"):
            request.rewind(1)
    else:
        request.rewind(1)
    other.infer(prompt)
    expected = other.infer(second)["logits"]
    np.testing.assert_array_equal(request.infer(second)["logits"], expected)
    np.testing.assert_array_equal(fork.infer(second)["logits"], expected)
    assert request.length == fork.length == (0 if is_static(path) else 5)


def test_states_of_many_requests_are_independent(path: Path, compiled: Callable[[str], Any]) -> None:
    """Requests in flight at the same time, each with tokens of its own."""
    network = compiled("CPU")
    generators = [np.random.default_rng(seed) for seed in range(100)]
    requests = [network.create_infer_request() for _ in generators]
    alone = []
    for seed in range(100):
        request, generator = network.create_infer_request(), np.random.default_rng(seed)
        alone.append([request.infer(step(path, generator, 1, past, 2))["logits"].copy() for past in (0, 2, 4)])
    for turn, past in enumerate((0, 2, 4)):
        for request, generator in zip(requests, generators, strict=True):
            request.start_async(step(path, generator, 1, past, 2))
        for request, expected in zip(requests, alone, strict=True):
            request.wait(60)
            np.testing.assert_array_equal(request.results["logits"], expected[turn])


@pytest.mark.parametrize("device", DEVICES[:3])
@pytest.mark.parametrize("path", GROWING, indirect=True)
def test_a_sequence_joins_a_batch(path: Path, compiled: Callable[[str], Any], device: str) -> None:
    """It goes on as it would alone, the other sequence as without it; a fork keeps what was there."""
    network, generator = compiled(device), np.random.default_rng(3)
    batch, one = network.create_infer_request(), network.create_infer_request()
    batch.infer(step(path, generator, 2, 0, 5))
    one.infer(step(path, generator, 1, 0, 3))
    fork, before = batch.fork(), {name: state.get() for name, state in batch.query_state().items()}
    for _ in range(2):  # the second time, no other request shares the memory
        batch.take_sequence(1, one)
        for name, state in batch.query_state().items():
            np.testing.assert_array_equal(state.get()[0], before[name][0])
            np.testing.assert_array_equal(state.get()[1, :, 2:], one.query_state()[name].get()[0])
            assert not state.get()[1, :, :2].any()
            np.testing.assert_array_equal(fork.query_state()[name].get(), before[name])
    token = step(path, generator, 2, 5, 1)
    token["position_ids"][1] = 3
    alone = {name: value[1:] for name, value in token.items()} | {"attention_mask": np.ones((1, 4), np.int64)}
    joined = {**token, "attention_mask": np.array([[1] * 6, [0] * 2 + [1] * 4])}
    found = batch.infer(joined)["logits"]
    np.testing.assert_allclose(found[0], fork.infer(token)["logits"][0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found[1], one.infer(alone)["logits"][0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("path", GROWING[:1], indirect=True)
def test_sequences_that_cannot_join(path: Path, compiled: Callable[[str], Any]) -> None:
    network, generator = compiled("CPU"), np.random.default_rng(3)
    batch, one, new = (network.create_infer_request() for _ in range(3))
    batch.infer(step(path, generator, 2, 0, 5))
    one.infer(step(path, generator, 1, 0, 6))
    before = {name: state.get() for name, state in batch.query_state().items()}
    for index, other, said in (
        (0, one, "cannot replace sequence 0"), (0, batch.fork(), "cannot replace sequence 0"),
        (0, new, "has no value before the first inference"), (0, batch, "another request of the same network"),
        (0, compiled("CPU").create_infer_request(), "another request of the same network"),
    ):  # fmt: skip
        with pytest.raises(StateError, match=said):
            batch.take_sequence(index, other)
    one.rewind(2)
    for index in (2, -1):
        with pytest.raises(StateError, match=f"cannot replace sequence {index}"):
            batch.take_sequence(index, one)
    for name, state in batch.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])


@pytest.mark.parametrize("device", DEVICES[:3])
@pytest.mark.parametrize("path", GROWING, indirect=True)
def test_a_batch_is_gathered_of_sequences_of_requests(path: Path, compiled: Callable[[str], Any], device: str) -> None:
    """Each goes on as it would without the others, and the requests keep their values."""
    network, generator = compiled(device), np.random.default_rng(3)
    batch, one = network.create_infer_request(), network.create_infer_request()
    batch.infer(step(path, generator, 2, 0, 5))
    one.infer(step(path, generator, 1, 0, 3))
    fork = batch.fork()
    new = network.create_infer_request()
    new.gather([(one, 0, 3), (batch, 1, 5)])
    batch.gather([(batch, 0, 5)])
    token = step(path, generator, 2, 5, 1)
    token["position_ids"][0] = 3
    found = new.infer({**token, "attention_mask": np.array([[0] * 2 + [1] * 4, [1] * 6])})["logits"]
    alone = {name: value[:1] for name, value in token.items()} | {"attention_mask": np.ones((1, 4), np.int64)}
    np.testing.assert_allclose(found[0], one.infer(alone)["logits"][0], rtol=0, atol=TOLERANCE)
    other = {**token, "position_ids": np.full((2, 1), 5)}
    whole = fork.infer(other)["logits"]
    np.testing.assert_allclose(found[1], whole[1], rtol=0, atol=TOLERANCE)
    found = batch.infer({name: value[:1] for name, value in other.items()})["logits"]
    np.testing.assert_allclose(found[0], whole[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("path", GROWING[:1], indirect=True)
def test_sequences_that_cannot_be_gathered(path: Path, compiled: Callable[[str], Any]) -> None:
    network, generator = compiled("CPU"), np.random.default_rng(3)
    batch, new = network.create_infer_request(), network.create_infer_request()
    batch.infer(step(path, generator, 2, 0, 5))
    before = {name: state.get() for name, state in batch.query_state().items()}
    for sources, said in (
        ([], "1 sequence or more"), ([(new, 0, 0)], "no value before the first inference"),
        ([(batch, 0, 6)], "cannot gather 6 positions"), ([(batch, 2, 1)], "of sequence 2"),
        ([(batch, -1, 1)], "of sequence -1"),
        ([(compiled("CPU").create_infer_request(), 0, 1)], "requests of the same network"),
        ([(batch, 0.5, 1)], "of sequence 0.5"), ([(batch, 0, True)], "cannot gather True positions"),
        (None, "by triples"), ([None], "by triples"), ([(batch, 0)], "by triples"), ([("x", 0, 1)], "by triples"),
    ):  # fmt: skip
        with pytest.raises(StateError, match=said):
            batch.gather(sources)  # type: ignore[arg-type]
    for nonsense in (None, [[0], [0, 1]], [0.5], "x"):
        for method in (batch.reorder, batch.rewind_each, batch.adopt):
            with pytest.raises(StateError):
                method(nonsense)
        with pytest.raises(StateError, match="another request of the same network"):
            batch.take_sequence(0, nonsense)  # type: ignore[arg-type]
    for name, state in batch.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])


def test_a_saved_state_goes_on_on_another_device(path: Path, compiled: Callable[[str], Any], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    prompt, token = step(path, generator, 1, 0, 4), step(path, generator, 1, 4, 1)
    request = compiled("CPU").create_infer_request()
    request.infer(prompt)
    request.save(tmp_path / "state")
    other = compiled("TEMPLATE").create_infer_request()
    other.load(tmp_path / "state")
    np.testing.assert_allclose(other.infer(token)["logits"], request.infer(token)["logits"], rtol=0, atol=TOLERANCE)


def test_a_saved_state_goes_on_in_another_process(tmp_path: Path) -> None:
    """From a state that this process saved, another process computes equal tokens."""
    decoder = DECODERS[0].with_name("llama.script17.onnx")
    program = f"""
import sys
import numpy as np
from engine import Core
from engine.errors import InferError, StateError
from engine.passes import MakeStateful

core = Core()
model = core.read_model({str(decoder)!r})
MakeStateful().run_on_model(model)
request = core.compile_model(model, "CPU").create_infer_request()
if sys.argv[1] == "load":
    request.load({str(tmp_path / "state")!r})
tokens = [7] if sys.argv[1] == "load" else [3, 14, 15]
for _ in range(3):
    past = request.length
    inputs = {{"input_ids": np.array([tokens]), "attention_mask": np.ones((1, past + len(tokens)), np.int64),
              "position_ids": np.arange(past, past + len(tokens))[None]}}
    tokens = [int(request.infer(inputs)["logits"][0, -1].argmax())]
    if sys.argv[1] == "save" and past == 0:
        request.save({str(tmp_path / "state")!r})
        tokens = [7]
    else:
        print(*tokens)
"""
    runs = [
        subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=True, timeout=300)
        for how in ("save", "load")
    ]
    saved, loaded = (run.stdout.split() for run in runs)
    assert len(saved) == 2
    assert loaded[:2] == saved
