"""Models that see pictures, in three parts: their tokens are those of onnxruntime and transformers.

`fixtures/vision_language_fixtures.py` has written the models.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import Core
from engine.errors import InputError, ModelReadError, StateError, UnsupportedError
from engine.generation import BeamSearch, Sampling, VisionLanguage, read_vision_language_folder
from engine.generation.picture_positions import Grid, positions_of
from engine.passes import MakeStateful

FOLDER = Path(__file__).parent / "fixtures" / "vision_language"
NAMES = ["gemma3", "qwen2_5_vl"]
IMAGE = 29


def expected(name: str) -> Any:
    return json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))


def picture(name: str, factor: float = 1.0) -> dict[str, Any]:
    pixels = np.linspace(-1, 1, 768, dtype=np.float32).reshape(expected(name)["pixels"]) * np.float32(factor)
    return {"pixel_values": pixels} | ({} if name == "gemma3" else {"image_grid_thw": np.array([[1, 4, 4]])})


def parts(name: str, device: str) -> tuple[Any, Any, Any]:
    core, found = Core(), read_vision_language_folder(FOLDER / name)
    decoder = core.read_model(found.decoder)
    MakeStateful(found.pairs([each.friendly_name for each in decoder.parameters]), bound=128).run_on_model(decoder)
    files = (found.vision, found.embedding, decoder)
    vision, embedding, compiled = (core.compile_model(each, device) for each in files)
    return vision, embedding, compiled


def generator_of(name: str, networks: tuple[Any, Any, Any], **options: Any) -> VisionLanguage:
    found = read_vision_language_folder(FOLDER / name)
    assert found.image_token is not None
    return VisionLanguage(
        *networks, image_token=found.image_token, spatial_merge_size=found.spatial_merge_size, names=found.names,
        embedding_names=found.embedding_names, **options,
    )  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def made(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, parts(request.param, "CPU")


def by_onnxruntime(name: str, prompt: list[int], factors: list[float], count: int) -> list[int]:
    """The likeliest tokens. All are computed again for each next one; the grids of pictures are 2 x 2 places."""
    tokens = list(prompt)
    for logits in logits_of(name, tokens, factors, count):
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def logits_of(name: str, tokens: list[int], factors: list[float], count: int = 1) -> Iterator[Any]:
    """What follows the tokens, to which the caller adds one each time."""
    sessions = {
        part: onnxruntime.InferenceSession(FOLDER / name / f"{part}.onnx", providers=["CPUExecutionProvider"])
        for part in ("vision", "embedding", "model")
    }
    seen = [sessions["vision"].run(None, {"pixel_values": picture(name, each)["pixel_values"]})[0] for each in factors]
    features = np.concatenate([*seen, np.zeros((0, 32), np.float32)])
    for _ in range(count):
        ids = np.array([tokens])
        embedded = sessions["embedding"].run(None, {"input_ids": ids, "image_features": features})[0]
        fed: dict[str, Any] = {"inputs_embeds": embedded, "attention_mask": np.ones_like(ids)}
        if name == "qwen2_5_vl":
            fed["position_ids"] = positions(tokens)
        for each in sessions["model"].get_inputs():
            if each.name.startswith("past"):
                fed[each.name] = np.zeros((1, 1, 64 if name == "gemma3" else 0, 16), np.float32)
        logits = sessions["model"].run(["logits"], fed)[0][0, -1]
        logits[IMAGE] = -np.inf
        yield logits


def positions(tokens: list[int]) -> Any:
    """Of each token, one by one: a place is at its row and column, from the position of its picture."""
    made, position, place = [], 0, 0
    for token in tokens:
        if token != IMAGE:
            made.append([position] * 3)
            position += 1
            continue
        made.append([position, position + place // 2, position + place % 2])
        place = (place + 1) % 4
        position += 0 if place else 2
    return np.array(made).T[:, None]


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_transformers_and_onnxruntime(name: str, device: str) -> None:
    known = expected(name)
    generator = generator_of(name, parts(name, device))
    found = generator.generate(known["prompt"], 16, pictures=picture(name))[0]
    assert found == known["tokens"] == by_onnxruntime(name, known["prompt"], [1.0], 16)
    assert generator.tokens == [known["prompt"] + found]
    generator.reset()
    other = generator.generate(known["prompt"], 16, pictures=picture(name, -3.0))[0]
    assert other == by_onnxruntime(name, known["prompt"], [-3.0], 16)
    assert other != found
    generator.reset()
    generator.append(known["prompt"], picture(name))
    (logits,) = logits_of(name, known["prompt"], [1.0])
    # Sums of at most 32 products of numbers around 1, through three layers.
    is_real = np.arange(40) != IMAGE
    np.testing.assert_allclose(generator.logits()[0][is_real], logits[is_real], rtol=0, atol=1e-4)
    generator.reset()
    text = [token for token in known["prompt"] if token != IMAGE]
    generator.append(text)
    assert list(generator.stream(8)) == by_onnxruntime(name, text, [], 8)


def test_positions_of_pictures() -> None:
    """As in section 2.1 of the paper: a picture of 2 x 3 places behind two tokens, one, and a picture of 1 x 1."""
    tokens = [5, 6, *[IMAGE] * 6, 7, IMAGE, 8, 9]
    found = positions_of(tokens, [Grid(2, 3), Grid(1, 1)], IMAGE)
    assert found[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8]
    assert found[1].tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8]
    assert found[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8]
    assert positions_of([4, 5], [], IMAGE).tolist() == [[0, 1]] * 3


def test_a_chat_with_further_pictures(made: tuple[str, Any]) -> None:
    name, networks = made
    prompt = expected(name)["prompt"]
    generator = generator_of(name, networks, checkpoints=16)  # for the window of Gemma3
    first = generator.generate(prompt, 4, pictures=picture(name))[0]
    second = generator.generate(prompt, 6, pictures=picture(name, -3.0))[0]
    assert second == by_onnxruntime(name, [*prompt, *first, *prompt], [1.0, -3.0], 6)
    other = generator.fork()
    generator.rewind(6 + len(prompt))
    assert generator.generate(prompt, 6, pictures=picture(name, -3.0))[0] == second
    generator.append([5])
    other.append([5])
    assert generator.step() == other.step()


def test_sequences_of_a_batch_and_beams(made: tuple[str, Any]) -> None:
    name, networks = made
    prompt = expected(name)["prompt"]
    both = generator_of(name, networks)
    pictures = [picture(name, factor) for factor in (1.0, -3.0)]
    alone = []
    for each in pictures:
        one = generator_of(name, networks)
        alone.append(one.generate(prompt, 8, pictures=each, beams=BeamSearch(3), n=2))
    if name == "gemma3":  # the vision part of the other takes one picture
        joined = {"pixel_values": np.concatenate([each["pixel_values"] for each in pictures])}
        assert both.generate([prompt, prompt], 8, pictures=joined, beams=BeamSearch(3), n=2) == [*alone[0], *alone[1]]
        both.reset()
        plain = both.generate([prompt, prompt], 8, pictures=joined)
        assert plain == [by_onnxruntime(name, prompt, [factor], 8) for factor in (1.0, -3.0)]
        both.reorder([1, 0])
        both.append([[3], [3]])
        assert both.step()[0] == by_onnxruntime(name, [*prompt, *plain[1], 3], [-3.0], 1)[0]
    several = generator_of(name, networks, sampling=Sampling(temperature=1.0, seed=3))
    drawn = several.generate(prompt, 8, pictures=pictures[0], n=3)
    assert len({tuple(row) for row in drawn}) > 1
    assert all(IMAGE not in row for row in drawn)


def test_errors_leave_the_generator_as_it_was(made: tuple[str, Any]) -> None:
    name, networks = made
    prompt, generator = expected(name)["prompt"], generator_of(name, networks)
    known = generator.generate(prompt, 4, pictures=picture(name))[0]
    wrong: list[tuple[Any, Any, str]] = [
        (prompt, None, "the tokens have 4 places for pictures (29), and the pictures 0"),
        ([1, 2], picture(name), "the tokens have 0 places for pictures (29), and the pictures 4"),
        (prompt[:5], picture(name), "the tokens have 2 places"),
        (prompt, picture(name)["pixel_values"], "expected the inputs of the vision part by name"),
        (prompt, picture(name) | {"sound": np.zeros(3)}, "no input 'sound'"),
        (prompt, picture(name) | {"pixel_values": np.zeros((2, 2), np.float32)}, "input `pixel_values`"),
        ([1, 99], None, "token 99 is out of range"),
    ]
    if name == "qwen2_5_vl":
        wrong += [
            (prompt, {"pixel_values": picture(name)["pixel_values"]}, "expected `image_grid_thw` among"),
            (prompt, picture(name) | {"image_grid_thw": np.array([[1, 4, 2]])}, "sequence 0 has 4 places for pictures"),
            (prompt, picture(name) | {"image_grid_thw": np.array([[1, 4, 4]] * 2)}, "has 2 pictures, 1 more than"),
            (
                prompt,
                picture(name) | {"image_grid_thw": np.array([[1, 4, 3]])},
                "4 x 3 patches; expected multiples of 2",
            ),
            (prompt, picture(name) | {"image_grid_thw": np.array([[2, 4, 4]])}, "films are not supported"),
            (prompt, picture(name) | {"image_grid_thw": np.array([4.0])}, "expected integers [pictures, 3]"),
            (prompt, picture(name) | {"image_grid_thw": [[1], [4, 4]]}, "expected integers [pictures, 3]"),
        ]
    for tokens, pictures, said in wrong:
        with pytest.raises(InputError) as found:
            generator.append(tokens, pictures)
        assert said in str(found.value)
    if name == "qwen2_5_vl":
        with pytest.raises(StateError, match="a part of a picture would be left"):
            generator.rewind(4 + 5)
    assert generator.tokens == [prompt + known]
    generator.append([7])
    assert [*generator.stream(3)] == by_onnxruntime(name, [*prompt, *known, 7], [1.0], 3)


def test_parts_that_do_not_fit() -> None:
    gemma, qwen = parts("gemma3", "TEMPLATE"), parts("qwen2_5_vl", "TEMPLATE")
    wrong: list[tuple[tuple[Any, Any, Any], dict[str, Any], str]] = [
        (gemma, {"image_token": 40}, "image_token is 40; expected a token of the model, 0 to 39"),
        (gemma, {"image_token": True}, "image_token is True"),
        ((gemma[0], gemma[0], gemma[2]), {}, "no input 'image_features'"),
        ((gemma[0], gemma[1], gemma[1]), {}, "no input 'inputs_embeds'"),
        (qwen, {"spatial_merge_size": 0}, "spatial_merge_size is 0; expected a number from 1"),
        (gemma, {"names": {"pixels": "x"}}, "unknown role `pixels`"),
        (gemma, {"names": {"inputs_embeds": "x"}}, "no input 'x'"),
        (gemma, {"embedding_names": {"input_ids": "x"}}, "no input 'x'"),
        (gemma, {"embedding_names": {"pixels": "x"}}, "unknown role `pixels` in embedding_names"),
        (gemma, {"embedding_names": ["x"]}, "embedding_names is ['x']; expected names by role"),
        (gemma, {"names": "x"}, "names is 'x'; expected names by role"),
    ]
    for networks, options, said in wrong:
        with pytest.raises(InputError) as found:
            VisionLanguage(*networks, **{"image_token": IMAGE} | options)
        assert said in str(found.value)


@pytest.mark.parametrize(
    ("where", "value", "error", "words"),
    [
        ("vision", None, ModelReadError, "`model.vision` is missing; expected an object"),
        ("vision.filename", "eyes.onnx", ModelReadError, "`model.vision.filename` is 'eyes.onnx'"),
        ("embedding.inputs", 3, ModelReadError, "`model.embedding.inputs` is 3; expected an object"),
        ("image_token_id", -1, ModelReadError, "`model.image_token_id` is -1; expected a whole number from 0"),
        ("speech", {}, UnsupportedError, "`model.speech` is not supported"),
        ("vision.pipeline", [], UnsupportedError, "`model.vision.pipeline` is not supported"),
    ],
)
def test_folders_that_are_refused(where: str, value: Any, error: Any, words: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER / "gemma3", tmp_path / "model"))
    config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    *above, key = where.split(".")
    table = config["model"]
    for each in above:
        table = table[each]
    table[key] = value
    if value is None:
        del table[key]
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(error) as found:
        read_vision_language_folder(folder)
    assert words in str(found.value)


def test_what_a_folder_says() -> None:
    found = read_vision_language_folder(FOLDER / "qwen2_5_vl")
    assert (found.image_token, found.spatial_merge_size, found.max_length) == (IMAGE, 2, 128)
    assert (found.names, found.embedding_names, found.beams) == ({}, {}, None)
    assert found.vision.name == "vision.onnx"
    assert found.tokenizer.name == "tokenizer.json"
