"""Folders of encoder-decoders: what the exporters write is read, and what is missing, wrong or unsupported refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine import Core
from engine.errors import ModelReadError, UnsupportedError
from engine.generation import BeamSearch, EncoderDecoder, Sampling, read_encoder_decoder_folder
from engine.passes import MakeStateful
from tests.test_encoder_decoder import expected, inputs_of

FOLDER = Path(__file__).parent / "fixtures" / "encoder_decoders"


@pytest.mark.parametrize("name", ["whisper", "t5"])
def test_tokens_of_a_folder(name: str) -> None:
    found = read_encoder_decoder_folder(FOLDER / name)
    core, known = Core(), expected(name)
    encoder, decoder = found.models(core.read_model)
    inputs = [each.friendly_name for each in decoder.parameters]
    MakeStateful(found.pairs(inputs), bound=found.bound).run_on_model(decoder)
    generator = EncoderDecoder(
        core.compile_model(encoder, "TEMPLATE"), core.compile_model(decoder, "TEMPLATE"), found.sampling,
        stop_tokens=[known["stop"]], names=found.names, cross=found.cross_names(inputs),
    )  # fmt: skip
    generator.encode(inputs_of(name))
    assert generator.generate(known["prompts"], 16) == known["found"][0]["tokens"]
    if name == "whisper":
        assert (found.prompt, found.stop_tokens, found.max_length, found.bound) == ((), (3,), 64, 64)
        assert found.cross_names(inputs)["past_key_cross_0"] == "present_key_cross_0"
    else:
        assert (found.prompt, found.stop_tokens, found.max_length, found.bound) == ((0,), (1,), None, None)
    assert (found.sampling, found.beams, found.begin_suppress_tokens) == (Sampling(), None, ())


def test_tokens_that_are_not_generated_first() -> None:
    found, core, known = read_encoder_decoder_folder(FOLDER / "t5"), Core(), expected("t5")
    encoder, decoder = found.models(core.read_model)
    MakeStateful().run_on_model(decoder)
    networks = core.compile_model(encoder, "TEMPLATE"), core.compile_model(decoder, "TEMPLATE")
    plain = EncoderDecoder(*networks)
    plain.encode(inputs_of("t5")[:1])
    plain.append([0])
    logits = plain.logits()[0]
    best, second = (int(token) for token in logits.argsort()[::-1][:2])
    generator = EncoderDecoder(*networks, begin_suppress_tokens=[best])
    generator.encode(inputs_of("t5")[:1])
    first, *rest = generator.generate([0], 8)[0]
    assert first == second
    plain.append([second])
    assert rest == list(plain.stream(7))
    generator.reset()
    searched = generator.generate([0], 8, beams=BeamSearch(2), n=2)
    assert best not in [row[0] for row in searched]
    assert len(known["prompts"]) == 3


def optimum(folder: Path, config: dict[str, Any] | None = None, generation: dict[str, Any] | None = None) -> Path:
    """A folder as Optimum writes it, whose models are not read."""
    for name in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"):
        (folder / name).write_bytes(b"")
    plain = {"decoder_start_token_id": 4, "eos_token_id": 3, "max_target_positions": 448}
    (folder / "config.json").write_text(json.dumps(plain | (config or {})), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def test_settings_of_generation(tmp_path: Path) -> None:
    found = read_encoder_decoder_folder(optimum(tmp_path))
    assert (found.prompt, found.stop_tokens, found.max_length, found.bound) == ((4,), (3,), 448, 448)
    settings = {
        "decoder_start_token_id": 5, "eos_token_id": [3, 6], "max_length": 99, "num_beams": 5, "length_penalty": 0.5,
        "suppress_tokens": [1, 2], "begin_suppress_tokens": [7, 8], "forced_decoder_ids": [[1, 9], [2, 10]],
        "early_stopping": True,
    }  # fmt: skip
    found = read_encoder_decoder_folder(optimum(tmp_path, generation=settings))
    assert (found.prompt, found.stop_tokens, found.max_length) == ((5, 9, 10), (3, 6), 99)
    assert found.beams == BeamSearch(5, 0.5, early_stopping=True)
    assert found.sampling == Sampling(logit_bias={1: -math.inf, 2: -math.inf})
    assert found.begin_suppress_tokens == (7, 8)
    assert found.tokenizer == tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"min_length": 3}, UnsupportedError, "`min_length` is 3, which the engine does not have; expected 0"),
        ({"no_repeat_ngram_size": 3}, UnsupportedError, "`no_repeat_ngram_size` is 3"),
        ({"forced_bos_token_id": 3}, UnsupportedError, "`forced_bos_token_id` is 3"),
        ({"forced_decoder_ids": [[1, None]]}, UnsupportedError, "`forced_decoder_ids` is [[1, None]]; expected tokens"),
        ({"forced_decoder_ids": [[2, 7]]}, UnsupportedError, "`forced_decoder_ids` is [[2, 7]]; expected tokens"),
        ({"num_beams": 4, "do_sample": True}, UnsupportedError, "`do_sample` is set, and `num_beams` is 4"),
        ({"suppress_tokens": [-1]}, ModelReadError, "`suppress_tokens` is [-1]; expected a whole number from 0"),
        ({"max_length": 0}, ModelReadError, "`max_length` is 0; expected a whole number from 1"),
        ({"num_beams": "many"}, ModelReadError, "`num_beams` is 'many'; expected a whole number from 1"),
    ],
)
def test_settings_that_are_refused(settings: Any, error: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(error) as found:
        read_encoder_decoder_folder(optimum(tmp_path, generation=settings))
    assert words in str(found.value)
    assert str(tmp_path / "generation_config.json") in str(found.value)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError, match=r"has no config\.json, and no genai_config\.json; expected a folder"):
        read_encoder_decoder_folder(tmp_path)
    (optimum(tmp_path) / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(ModelReadError, match=r"has no decoder_with_past_model\.onnx; expected a folder of Optimum"):
        read_encoder_decoder_folder(tmp_path)
    shutil.copy(FOLDER / "whisper" / "genai_config.json", tmp_path)
    with pytest.raises(ModelReadError, match=r"`model\.encoder\.filename` is 'encoder\.onnx'; expected the name of a"):
        read_encoder_decoder_folder(tmp_path)
    config = json.loads((tmp_path / "genai_config.json").read_text(encoding="utf-8"))
    for name in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / name).write_bytes(b"")
    config["model"]["decoder"]["inputs"]["cross_past_key_names"] = "cross"
    (tmp_path / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelReadError, match=r"cross_past_key_names` is 'cross'; expected a name with one %d"):
        read_encoder_decoder_folder(tmp_path)
    del config["model"]["encoder"]
    (tmp_path / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelReadError, match=r"`model\.encoder` is missing; expected an object"):
        read_encoder_decoder_folder(tmp_path)
