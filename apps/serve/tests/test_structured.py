"""Answers of a structure. If this fails, programs cannot parse what they asked for, or a schema stops the server."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from apps.serve.tests.conftest import Running, running
from apps.serve.tests.test_openai import CONFIG, EXPECTED, FIXTURES, openai

pytest.importorskip("llguidance")
MESSAGES = [{"role": "user", "content": "How fast is the fox?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["fox", "dög", "🐕"]},
        "speed": {"type": "integer", "minimum": 0, "maximum": 99},
        "colours": {"type": "array", "items": {"$ref": "#/$defs/colour"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "speed", "colours"],
    "additionalProperties": False,
    "$defs": {"colour": {"type": "string", "pattern": "^[a-z]{1,4}$"}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("structured") / "models"
    for name in ("chat", "endless"):
        shutil.copytree(FIXTURES / "chat", folder / name)
        (folder / name / "config.toml").write_text(CONFIG if name == "chat" else CONFIG.replace("stop_tokens", "#"))
    with running(folder) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.http}/openai/v1", api_key="none", max_retries=0) as made:
        yield made


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def check(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["name", "speed", "colours"]
    assert found["name"] in ("fox", "dög", "🐕")
    assert type(found["speed"]) is int
    assert 0 <= found["speed"] <= 99
    assert 1 <= len(found["colours"]) <= 3
    assert all(colour.islower() and 1 <= len(colour) <= 4 for colour in found["colours"])


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_match_a_schema(client: Any, temperature: float) -> None:
    """Also several at once, and in events; sequences of others, which run beside them, are as always."""
    asked = {"model": "chat", "messages": MESSAGES, "response_format": form(SCHEMA), "temperature": temperature}

    def others() -> list[str]:
        expected = EXPECTED["completions"][0]
        options = {"model": "chat", "prompt": expected["prompt"], "max_tokens": 24, "temperature": 0}
        return [client.completions.create(**options).choices[0].text for _ in range(6)]

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        beside = pool.submit(others)
        found = client.chat.completions.create(**asked, n=6, seed=1)
        for choice in found.choices:
            check(choice.message.content)
            assert choice.finish_reason == "stop"
        assert beside.result() == [EXPECTED["completions"][0]["text"]] * 6
    events = client.chat.completions.create(**asked, seed=1, stream=True)
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == found.choices[0].message.content


def test_completions_match_a_schema(client: Any) -> None:
    options = {"extra_body": {"response_format": form(SCHEMA)}, "max_tokens": 400}
    for choice in client.completions.create(model="chat", prompt=["A", "B"], **options).choices:
        check(choice.text)


def test_json_of_any_schema(client: Any) -> None:
    """It may be cut off, which `finish_reason` tells; a bias makes it short."""
    tokens = dict.fromkeys(("}", "{"), 100)
    vocabulary = json.loads((FIXTURES / "chat" / "tokenizer.json").read_text())["model"]["vocab"]
    asked = {"model": "chat", "messages": MESSAGES, "response_format": {"type": "json_object"}, "temperature": 0}
    bias = {str(vocabulary[token]): value for token, value in tokens.items()}
    found = client.chat.completions.create(**asked, logit_bias=bias).choices[0]
    assert (json.loads(found.message.content), found.finish_reason) == ({}, "stop")
    cut = client.chat.completions.create(**asked, max_tokens=2).choices[0]
    assert (cut.message.content[0], cut.finish_reason) == ("{", "length")


def test_a_number_that_could_go_on(client: Any) -> None:
    """A stop token ends it, where the grammar lets it end."""
    asked = {"model": "chat", "messages": MESSAGES, "logit_bias": {"4": 100}, "temperature": 0}
    found = client.chat.completions.create(**asked, response_format=form({"type": "integer"})).choices[0]
    assert (found.finish_reason, type(json.loads(found.message.content))) == ("stop", int)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (form(3), "response_format.json_schema.schema"),
        (form(None), "response_format.json_schema.schema"),
        (form({"type": "wizard"}), "wizard"),
        (form({"type": "string", "minLength": 3, "maxLength": 2}), "that an answer can match"),
        (form({"enum": []}), "that an answer can match"),
        (form({"not": {}}), "not"),
        (form({"$ref": "#/$defs/none"}), "none"),
        (form({"$ref": "http://127.0.0.1/schema"}), "127.0.0.1"),
        (form({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (form({"type": "string", "pattern": "("}), "regex"),
        (form({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}), "'a'"),
        (form({"allOf": [{"type": "string", "pattern": f"^.*a.{{{n}}}$"} for n in range(1, 40)]}), "5 s of CPU time"),
        (form({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(20000)}}), "too large"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "grammar"}, "response_format"),
        ("json", "response_format"),
        (["json"], "response_format"),
    ],
)  # fmt: skip
def test_what_is_refused(client: Any, server: Running, given: Any, said: str) -> None:
    before = server.log.count("refused")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chat", messages=MESSAGES, response_format=given)
    assert said in caught.value.body["message"]
    assert server.log.count("refused") == before + 1
    found = client.chat.completions.create(model="chat", messages=MESSAGES, response_format=form(SCHEMA))
    check(found.choices[0].message.content)


def test_a_model_without_stop_tokens(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="needs `stop_tokens`"):
        client.chat.completions.create(model="endless", messages=MESSAGES, response_format=form(SCHEMA))


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
