"""Encoder-decoders: their tokens are those of onnxruntime and transformers, and an error leaves them as they were.

`fixtures/encoder_decoder_fixtures.py` has written the models: Whisper by onnxruntime-genai's builder, T5 by Optimum.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.errors import GraphError, InputError, StateError
from engine.generation import BeamSearch, EncoderDecoder, Generator, Sampling, with_cross_states
from engine.passes import LastPosition, MakeStateful

FOLDER = Path(__file__).parent / "fixtures" / "encoder_decoders"
FILES = {
    "whisper": ("encoder.onnx", "decoder.onnx"),
    "t5": ("encoder_model.onnx", "decoder_with_past_model.onnx"),
}


def expected(name: str) -> Any:
    return json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))


def inputs_of(name: str) -> Any:
    """What was encoded, for a batch."""
    known = expected(name)
    if name == "t5":
        return known["input_ids"]
    frames, bins = np.arange(3000, dtype=np.float32) / 40, np.arange(4, dtype=np.float32)[:, None]
    return np.stack([np.sin(frames * np.float32(a) + bins * np.float32(b)) for a, b in known["waves"]])


def networks(name: str, device: str) -> tuple[Any, Any]:
    core = Core()
    encoder, decoder = (core.read_model(FOLDER / name / file) for file in FILES[name])
    if name == "t5":
        encoder = with_cross_states(encoder, core.read_model(FOLDER / name / "decoder_model.onnx"))
        decoder.reshape({"input_ids": ["batch_size", 1]})
    MakeStateful(bound=64).run_on_model(decoder)
    if name == "whisper":
        LastPosition().run_on_model(decoder)
    return core.compile_model(encoder, device), core.compile_model(decoder, device)


@pytest.fixture(scope="module", params=["whisper", "t5"])
def made(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    return request.param, *networks(request.param, "CPU")


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(model: Any, values: dict[str, Any]) -> dict[str, Any]:
    given = {each.name: values[each.name] for each in model.get_inputs()}
    return dict(zip([each.name for each in model.get_outputs()], model.run(None, given), strict=True))


def by_onnxruntime(name: str, inputs: Any, prompts: list[list[int]], count: int) -> tuple[list[list[int]], Any]:
    """The likeliest tokens by the files as they are, and the logits of the last one."""
    folder = FOLDER / name
    if name == "whisper":
        known = run(session(folder / "encoder.onnx"), {"audio_features": inputs})
        decoder = first = session(folder / "decoder.onnx")
        states = {each.name: np.zeros((len(prompts), 2, 0, 4), np.float32) for each in decoder.get_inputs()}
        states |= {key.replace("present", "past"): value for key, value in known.items() if "cross" in key}
        ids = np.array(prompts, np.int32)
    else:
        width = max(map(len, inputs))
        source = np.array([[*row, *[0] * (width - len(row))] for row in inputs])
        mask = (source > 0).astype(np.int64)
        states = {"encoder_attention_mask": mask}
        known = run(session(folder / "encoder_model.onnx"), {"input_ids": source, "attention_mask": mask})
        states["encoder_hidden_states"] = known["last_hidden_state"]
        first, decoder = session(folder / "decoder_model.onnx"), session(folder / "decoder_with_past_model.onnx")
        ids = np.array(prompts)
    found: list[Any] = []
    for _ in range(count):
        known = run(decoder if found else first, states | {"input_ids": ids})
        past = "past_key_values" if name == "t5" else "past"
        states |= {key.replace("present", past): value for key, value in known.items() if key != "logits"}
        ids = known["logits"][:, -1].argmax(axis=1)[:, None].astype(ids.dtype)
        found.append(ids[:, 0].tolist())
    return np.array(found).T.tolist(), known["logits"][:, -1]


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("name", ["whisper", "t5"])
def test_tokens_are_those_of_onnxruntime(name: str, device: str) -> None:
    inputs, prompts = inputs_of(name), expected(name)["prompts"]
    generator = EncoderDecoder(*networks(name, device))
    generator.encode(inputs)
    tokens, logits = by_onnxruntime(name, inputs, prompts, 12)
    assert generator.generate(prompts, 11) == [row[:11] for row in tokens]
    # Sums of at most 1,500 products of numbers around 1, through two layers.
    np.testing.assert_allclose(generator.logits(), logits, rtol=0, atol=2e-3)
    for row, prompt in enumerate(prompts):  # each alone, streamed
        generator.encode(inputs[row : row + 1])
        generator.append(prompt)
        assert list(generator.stream(12)) == by_onnxruntime(name, inputs[row : row + 1], [prompt], 12)[0][0]


@pytest.mark.parametrize("index", range(9))
def test_tokens_and_beams_are_those_of_transformers(made: Any, index: int) -> None:
    name, encoder, decoder = made
    known = expected(name)
    case = known["found"][index]
    options = dict(case["options"])
    sampling = Sampling(repetition_penalty=options.pop("repetition_penalty", 1.0))
    generator = EncoderDecoder(encoder, decoder, sampling, stop_tokens=[known["stop"]])
    generator.encode(inputs_of(name))
    beams, count = options.pop("num_beams", None), options.pop("num_return_sequences", 1)
    if beams is None:
        assert generator.generate(known["prompts"], 16) == case["tokens"]
        return
    search = BeamSearch(beams, **options)
    assert generator.generate(known["prompts"], 16, beams=search, n=count) == case["tokens"]
    assert generator.tokens == known["prompts"]
    found = [each.score for row in search.search(generator, 16) for each in row[:count]]
    np.testing.assert_allclose(found, case["scores"], rtol=1e-4)


def test_what_was_encoded_is_read_in_place(made: Any) -> None:
    """No copies for a token, and none for beams of one sequence that change places."""
    name, encoder, decoder = made
    generator = EncoderDecoder(encoder, decoder)
    generator.encode(inputs_of(name)[:1])
    generator.append(expected(name)["prompts"][0])
    generator.step()
    key = "past_value_cross_0" if name == "whisper" else "past_key_values.0.encoder.value"
    first = generator.request.get_input_tensor(key)
    generator.step()
    assert generator.request.get_input_tensor(key) is first
    generator.repeat(2)
    generator.step()
    repeated = generator.request.get_input_tensor(key)
    np.testing.assert_array_equal(repeated, np.repeat(first, 2, axis=0))
    generator.reorder([1, 0])
    generator.step()
    assert generator.request.get_input_tensor(key) is repeated


def test_sequences_of_a_batch_in_another_order(made: Any) -> None:
    name, encoder, decoder = made
    prompts, inputs = expected(name)["prompts"], inputs_of(name)
    generator = EncoderDecoder(encoder, decoder)
    generator.encode(inputs)
    plain = generator.generate(prompts, 10)
    generator.reset()
    first = generator.generate(prompts, 4)
    other = generator.fork()
    order = [1, 0, 1]
    generator.reorder(order)
    more: list[list[int]] = [[] for _ in order]
    for _ in range(6):
        for row, token in zip(more, generator.step(), strict=True):
            assert token is not None
            row.append(token)
    assert [[*first[i], *row] for i, row in zip(order, more, strict=True)] == [plain[i] for i in order]
    other.rewind(3)
    other.append([row[1:2] for row in plain])
    assert other.step() == [row[2] for row in plain]
    other.encode(inputs[:1])
    assert other.generate(prompts[0], 10) == plain[:1]
    assert len(generator.step()) == 3


def test_sequences_of_a_batch_that_end_before_others(made: Any) -> None:
    name, encoder, decoder = made
    known = expected(name)
    generator = EncoderDecoder(encoder, decoder, Sampling(temperature=0.9, seed=5), stop_tokens=[known["stop"]])
    generator.encode(inputs_of(name))
    together = generator.generate(known["prompts"], 12)
    assert len({len(row) for row in together}) > 1
    generator.encode(inputs_of(name)[:1])
    assert generator.generate(known["prompts"][0], 12) == together[:1]
    generator.reset()
    several = generator.generate(known["prompts"][0], 12, n=3)
    assert several[0] == together[0]
    assert several[1:] != [several[0]] * 2


def test_asyncio(made: Any) -> None:
    name, encoder, decoder = made
    generator = EncoderDecoder(encoder, decoder)
    generator.encode(inputs_of(name)[:1])
    prompt = expected(name)["prompts"][0]
    tokens = generator.generate(prompt, 6)[0]
    generator.reset()
    generator.append(prompt)

    async def streamed() -> list[int]:
        return [token async for token in generator.stream_async(6)]

    assert asyncio.run(streamed()) == tokens


def test_errors_leave_the_generator_as_it_was(made: Any) -> None:
    name, encoder, decoder = made
    prompts = expected(name)["prompts"]
    generator = EncoderDecoder(encoder, decoder)
    with pytest.raises(InputError, match="nothing was encoded; call encode first"):
        generator.append(prompts)
    generator.encode(inputs_of(name))
    plain = generator.generate(prompts, 6)
    generator.reset()
    first = generator.generate(prompts, 3)
    count = len(prompts)
    wrong: list[tuple[Any, str]] = (
        [
            (inputs_of(name)[:, :, 1:], "dimension 2 is 2999, expected 3000"),
            (inputs_of(name)[:, 1:], "dimension 1 is 3, expected 4"),
            (inputs_of(name)[0], "rank is 2"),
            ({"sound": inputs_of(name)}, "no input 'sound'"),
            (inputs_of(name).astype(np.float64), "element type is float64, expected float32"),
        ]
        if name == "whisper"
        else [
            ([[1, 2], []], "tokens must not be empty"),
            ([[1.5]], "a token is an integer"),
            ({"input_ids": np.array([[1, 2]])}, "input `attention_mask` .* is missing"),
            ({"input_ids": np.array([[1, 2]]), "attention_mask": np.ones((1, 3), np.int64)}, "must be the same"),
        ]
    )
    for given, said in wrong:
        with pytest.raises(InputError, match=said):
            generator.encode(given)
    for search, said in (
        (BeamSearch(33), "beams is 33; the model has 32 tokens"),
        (BeamSearch(32), "beams is 32; the model has 32 tokens, 1 of which may be stop tokens"),
    ):
        one = EncoderDecoder(encoder, decoder, stop_tokens=[1])
        one.encode(inputs_of(name))
        with pytest.raises(InputError, match=said):
            one.generate(prompts, 4, beams=search)
    assert [[*a, *b] for a, b in zip(first, _steps(generator, 3), strict=True)] == plain
    generator.reset()
    with pytest.raises(InputError, match=f"got tokens for 1 sequences; {count} were encoded"):
        generator.append(prompts[0])
    with pytest.raises(InputError, match="n is 5; expected at most the number of beams, 4"):
        generator.generate(prompts, 4, beams=BeamSearch(), n=5)
    with pytest.raises(InputError, match="beams is 4; expected a BeamSearch"):
        generator.generate(prompts, 4, beams=4)  # type: ignore[arg-type]
    assert generator.tokens == []
    assert generator.generate(prompts, 6) == plain
    for what in ("names", "cross"):
        for given in ("x", np.zeros(2)):
            with pytest.raises(InputError, match=f"{what} is .*; expected "):
                EncoderDecoder(encoder, decoder, **{what: given})
    drawn = EncoderDecoder(encoder, decoder, Sampling(temperature=1.0))
    drawn.encode(inputs_of(name))
    with pytest.raises(InputError, match="a beam search draws no tokens"):
        drawn.generate(prompts, 4, beams=BeamSearch())


def _steps(generator: Generator, count: int) -> list[list[int | None]]:
    return [list(row) for row in zip(*(generator.step() for _ in range(count)), strict=True)]


def test_a_decoder_of_another_encoder() -> None:
    encoder, decoder = networks("whisper", "TEMPLATE")
    core = Core()
    for change, said in (
        (lambda model: model.remove_result(model.result("present_key_cross_0")), "no output for the decoder's input"),
        (lambda model: model.reshape({"audio_features": [1, 4, 3000]}), None),
    ):
        model = core.read_model(FOLDER / "whisper" / "encoder.onnx")
        change(model)
        if said is None:
            EncoderDecoder(core.compile_model(model, "TEMPLATE"), decoder)
            continue
        with pytest.raises(InputError, match=said):
            EncoderDecoder(core.compile_model(model, "TEMPLATE"), decoder)
    tensor = helper.make_tensor_value_info
    outputs = [tensor(f"present_{kind}_cross_0", TensorProto.FLOAT, ["batch", 2, 8, 4]) for kind in ("key", "value")]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["sound"], [each.name]) for each in outputs],
        "other",
        [tensor("sound", TensorProto.FLOAT, ["batch", 2, 8, 4])],
        outputs,
    )
    other = core.compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "TEMPLATE")
    with pytest.raises(InputError, match="expected the encoder of this decoder"):
        EncoderDecoder(other, decoder)
    with pytest.raises(InputError, match="no input 'past'"):
        EncoderDecoder(encoder, decoder, cross={"past": "hidden_states"})
    with pytest.raises(InputError, match="no output or input `states`"):
        EncoderDecoder(encoder, decoder, cross={"past_key_cross_0": "states"})
    with pytest.raises(InputError, match="no input has values of the encoder"):
        EncoderDecoder(encoder, encoder, names={"input_ids": "audio_features"})
    with pytest.raises(GraphError, match=r"no outputs such as `present\.0\.encoder\.key`"):
        with_cross_states(
            core.read_model(FOLDER / "t5" / FILES["t5"][0]), core.read_model(FOLDER / "t5" / FILES["t5"][1])
        )
    with pytest.raises(GraphError, match="expected the encoder of this decoder"):
        with_cross_states(
            core.read_model(FOLDER / "whisper" / "encoder.onnx").extract(None, ["present_key_cross_0"]),
            core.read_model(FOLDER / "t5" / "decoder_model.onnx"),
        )


def test_a_sequence_that_is_longer_than_the_bound() -> None:
    encoder, _ = networks("whisper", "CPU")
    core = Core()
    decoder = core.read_model(FOLDER / "whisper" / "decoder.onnx")
    MakeStateful(bound=6).run_on_model(decoder)
    generator = EncoderDecoder(encoder, core.compile_model(decoder, "CPU"))
    generator.encode(inputs_of("whisper")[:1])
    generator.append([4, 7, 9])
    with pytest.raises(StateError, match="its bound is 6"):
        BeamSearch(2).search(generator, 8)
    assert generator.tokens == [[4, 7, 9]]
    assert len(generator.generate([5], 3)[0]) == 3
