"""`genai_config.json`: which settings the engine reads, and how it refuses missing, malformed and unsupported ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, ModelReadError, UnsupportedError
from engine.generation import BeamSearch, Sampling, read_genai_folder


def config() -> dict[str, Any]:
    """As the builder writes it."""
    return {
        "model": {
            "bos_token_id": 1,
            "context_length": 256,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": 16,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
            "eos_token_id": [2, 7],
            "type": "llama",
        },
        "search": {
            "diversity_penalty": 0.0, "do_sample": False, "early_stopping": True, "length_penalty": 1.0,
            "max_length": 128, "min_length": 0, "no_repeat_ngram_size": 0, "num_beams": 1, "num_return_sequences": 1,
            "past_present_share_buffer": True, "repetition_penalty": 1.1, "temperature": 0.6, "top_k": 50, "top_p": 0.9,
        },
    }  # fmt: skip


def written(folder: Path, content: Any) -> Path:
    (folder / "model.onnx").write_bytes(b"")
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "genai_config.json").write_text(text, encoding="utf-8")
    return folder


def changed(where: str, value: Any) -> dict[str, Any]:
    """The configuration with another value at a path of keys; `None` removes the key."""
    made = config()
    *above, key = where.split(".")
    table = made
    for each in above:
        table = table[each]
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
    return made


def test_what_the_builder_writes(tmp_path: Path) -> None:
    found = read_genai_folder(written(tmp_path, config()))
    assert (found.model, found.tokenizer) == (tmp_path / "model.onnx", tmp_path / "tokenizer.json")
    assert (found.names, found.stop_tokens, found.max_length) == ({}, (2, 7), 128)
    assert found.sampling == Sampling(repetition_penalty=1.1)  # the likeliest tokens
    assert found.pairs(["input_ids", "past_key_values.0.key"]) is None


def test_settings_of_draws(tmp_path: Path) -> None:
    drawing = changed("search.do_sample", True)
    assert read_genai_folder(written(tmp_path, drawing)).sampling == Sampling(1.1, 0.6, 50, 0.9, None)
    drawing["search"] |= {"random_seed": 5, "temperature": None}
    assert read_genai_folder(written(tmp_path, drawing)).sampling == Sampling(1.1, 1.0, 50, 0.9, 5)
    drawing["search"]["random_seed"] = -1
    assert read_genai_folder(written(tmp_path, drawing)).sampling.seed is None


def test_settings_of_beams(tmp_path: Path) -> None:
    several = changed("search.num_beams", 4)
    assert read_genai_folder(written(tmp_path, several)).beams == BeamSearch(4, 1.0, early_stopping=True)
    several["search"] |= {"length_penalty": 0.5, "early_stopping": "never"}
    assert read_genai_folder(written(tmp_path, several)).beams == BeamSearch(4, 0.5, early_stopping="never")
    several["search"]["do_sample"] = True
    with pytest.raises(UnsupportedError, match=r"`search\.do_sample` is set, and `search\.num_beams` is 4"):
        read_genai_folder(written(tmp_path, several))


def test_what_may_be_left_out(tmp_path: Path) -> None:
    found = read_genai_folder(written(tmp_path, {"model": {"decoder": {}}}))
    assert (found.names, found.stop_tokens, found.max_length, found.sampling) == ({}, (), None, Sampling())
    assert read_genai_folder(written(tmp_path, changed("model.eos_token_id", 2))).stop_tokens == (2,)
    assert read_genai_folder(written(tmp_path, changed("search.max_length", None))).max_length == 256


def test_other_names(tmp_path: Path) -> None:
    other = changed("model.decoder.inputs", {"input_ids": "ids", "past_key_names": "k%d", "past_value_names": "v%d"})
    other["model"]["decoder"]["outputs"] = {
        "logits": "scores",
        "present_key_names": "nk%d",
        "present_value_names": "nv%d",
    }
    found = read_genai_folder(written(tmp_path, other))
    assert found.names == {"input_ids": "ids", "logits": "scores"}
    pairs = {"k0": "nk0", "k1": "nk1", "v0": "nv0", "v1": "nv1"}
    assert found.pairs(["ids", "v1", "v0", "k0", "k1"]) == pairs


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("model", None, "`model` is missing; expected an object"),
        ("model", [], "`model` is []; expected an object"),
        ("model.decoder", 7, "`model.decoder` is 7; expected an object"),
        ("search", "x", "`search` is 'x'; expected an object"),
        (
            "model.decoder.filename",
            "other.onnx",
            "`model.decoder.filename` is 'other.onnx'; expected the name of a file in",
        ),
        ("model.decoder.filename", "../model.onnx", "expected a file inside the folder"),
        ("model.decoder.filename", "/etc/passwd", "expected a file inside the folder"),
        ("model.decoder.filename", "C:\\model.onnx", "expected a file inside the folder"),
        ("model.decoder.filename", "x" * 5000, "; expected the name of a file in"),
        ("model.decoder.filename", "", "`model.decoder.filename` is ''; expected a text"),
        ("model.decoder.filename", 1, "`model.decoder.filename` is 1; expected a text"),
        ("model.decoder.inputs", [], "`model.decoder.inputs` is []; expected an object"),
        ("model.decoder.inputs.input_ids", 3, "`model.decoder.inputs.input_ids` is 3; expected a text"),
        ("model.decoder.inputs.past_key_names", "past", "is 'past'; expected a name with one %d"),
        ("model.decoder.outputs.present_value_names", "%d.%d", "is '%d.%d'; expected a name with one %d"),
        ("model.eos_token_id", "</s>", "`model.eos_token_id` is '</s>'; expected a whole number from 0"),
        ("model.eos_token_id", [2, -1], "`model.eos_token_id` is [2, -1]; expected a whole number from 0"),
        ("model.eos_token_id", True, "`model.eos_token_id` is True; expected"),
        ("model.context_length", 10**30, "`model.context_length` is 1000000000000000000000000000000; expected"),
        ("search.max_length", 0, "`search.max_length` is 0; expected a whole number from 1"),
        ("search.num_beams", 0, "`search.num_beams` is 0; expected a whole number from 1"),
        ("search.early_stopping", "soon", "`search.early_stopping` is 'soon'; expected true, false or \"never\""),
        ("search.do_sample", "yes", "`search.do_sample` is 'yes'; expected true or false"),
        ("search.temperature", "hot", "`search.temperature` is 'hot'; expected a number"),
        (
            "search.repetition_penalty",
            10**400,
            "repetition_penalty is an integer of 1329 bits; expected a number above 0",
        ),
        ("search.repetition_penalty", 0, "`search`: Sampling: repetition_penalty is 0; expected a number above 0"),
    ],
)
def test_nonsense(where: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as found:
        read_genai_folder(written(tmp_path, changed(where, value)))
    assert words in str(found.value)
    assert str(tmp_path / "genai_config.json") in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("model.vision", {"filename": "vision.onnx"}, "`model.vision` is a further part of the model"),
        ("model.encoder", {}, "`model.encoder` is a further part of the model"),
        ("model.decoder.pipeline", [], "`model.decoder.pipeline` has several models"),
        ("model.decoder.inputs", {"inputs_embeds": "inputs_embeds"}, "inputs_embeds`, which another model computes"),
        ("search.num_return_sequences", 4, "`search.num_return_sequences` is 4, which the engine does not have"),
        ("search.min_length", 10, "`search.min_length` is 10, which the engine does not have; expected 0"),
        ("search.no_repeat_ngram_size", "2", "`search.no_repeat_ngram_size` is '2'"),
    ],
)
def test_what_is_not_supported(where: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as found:
        read_genai_folder(written(tmp_path, changed(where, value)))
    assert words in str(found.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "\x00",
        "[" * 5000,
        '{"model": ' * 5000,
        "1" * 5000,
        '{"search": NaN}',
        "é" * (1 << 20),
    ],
    ids=lambda text: f"{text[:8]!r} of {len(text)}",
)
def test_files_that_are_no_configuration(content: str, tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as found:
        read_genai_folder(written(tmp_path, content))
    assert len(str(found.value)) < 500
    assert str(tmp_path) in str(found.value)


def test_a_search_of_no_number(tmp_path: Path) -> None:
    """JSON with NaN and Infinity, which Python reads."""
    text = json.dumps(config()).replace('"repetition_penalty": 1.1', '"repetition_penalty": NaN')
    with pytest.raises(EngineError, match="repetition_penalty is nan; expected a number above 0"):
        read_genai_folder(written(tmp_path, text))


def test_folders_without_a_configuration(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none", "x" * 5000, "x\0"):
        with pytest.raises(ModelReadError, match=r"has no genai_config.json, .* give the file of a model"):
            read_genai_folder(folder)
