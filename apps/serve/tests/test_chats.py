"""Chats by OpenAI's own client. If this fails, models read other texts than those they were trained with, or a template
stops the server.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_serve.chat_template import find_chat_template

from apps.serve.tests.conftest import CONFIG, EXPECTED, FIXTURES, Running, running
from engine.errors import InputError, UnsupportedError

openai = pytest.importorskip("openai")
TEMPLATES = {
    "loops": "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3,
    "grows": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "multiplies": "{{ 'ab' * 10 ** 12 }}",
    "long": "{{ 'ab' * 5000000 }}",
    "reads": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "includes": "{% include '/etc/passwd' %}",
    "imports": "{{ cycler.__init__.__globals__.os.environ }}",
    "stores": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "changes": "{% set _ = messages.append(1) %}{{ messages }}",
    "undefined": "{{ messages[7].content }}",
    "malformed": "{% for message in messages %}",
    "refuses": "{{ raise_exception('only one <user> message') }}",
}
SAID = {
    "loops": "2 s of CPU time, and was stopped",
    "grows": "memory",
    "multiplies": "memory",
    "long": "10000000 characters",
    "reads": "SecurityError",
    "includes": "no loader",
    "imports": "SecurityError",
    "stores": "SecurityError",
    "changes": "SecurityError",
    "undefined": "UndefinedError",
    "malformed": "TemplateSyntaxError",
    "refuses": "only one <user> message",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("chats") / "models"
    for name in ("chat", "none", "two", *TEMPLATES):
        shutil.copytree(FIXTURES / "chat", folder / name)
        (folder / name / "config.toml").write_text(CONFIG)
        if name != "chat":
            (folder / name / "chat_template.jinja").unlink()
        if name in TEMPLATES:
            (folder / name / "chat_template.jinja").write_text(TEMPLATES[name])
    listed = [{"name": "default", "template": "without{% generation %} {{ bos_token }}{% endgeneration %}"}]
    listed.append({"name": "tool_use", "template": "{{ strftime_now('%Y')[:1] }}{{ tools[0].function.name }}"})
    tokens = {"bos_token": {"content": "<|user|>"}, "add_bos_token": True}
    (folder / "two" / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed, **tokens}))
    with running(folder) as found:
        yield found


@pytest.mark.parametrize("expected", EXPECTED["chats"][:2], ids=["short", "long"])
def test_answers_are_those_of_transformers(client: Any, expected: Any) -> None:
    asked = {"model": "chat", "messages": expected["messages"], "max_completion_tokens": 24, "temperature": 0}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected["text"])
    assert found.usage.prompt_tokens == len(expected["prompt_tokens"])
    logs = choice.logprobs.content
    # float32 rounds sums of 32 products, of logits up to 10, by about 1e-5.
    assert [log.logprob for log in logs] == pytest.approx(expected["logprobs"], abs=1e-4)
    parts = [bytes(log.bytes) for log in logs if not log.token.startswith("<|")]
    assert b"".join(parts).decode(errors="replace") == expected["text"]
    assert [len(log.top_logprobs) for log in logs] == [3] * len(logs)
    assert [log.top_logprobs[0].bytes for log in logs] == [log.bytes for log in logs]
    events = list(client.chat.completions.create(**asked, stream=True, logprobs=True))
    deltas = [event.choices[0].delta for event in events]
    assert "".join(delta.content or "" for delta in deltas) == expected["text"]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert [event.choices[0].finish_reason for event in events] == [None] * (len(events) - 1) + [choice.finish_reason]
    told = [log.logprob for event in events if event.choices[0].logprobs for log in event.choices[0].logprobs.content]
    assert told == pytest.approx(expected["logprobs"], abs=1e-4)


def test_the_text_that_the_model_reads(client: Any) -> None:
    """By its number of tokens, and its answer: parts are lines, and null is omitted, as clients send answers again."""
    tokens = EXPECTED["chats"][1]["prompt_tokens"]
    messages = [dict(message) for message in EXPECTED["chats"][1]["messages"]]
    messages[2] |= {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
    messages[1]["content"] = [{"type": "text", "text": "Who sleeps <here> & 'now'?"}]
    asked = {"model": "chat", "messages": messages, "max_tokens": 24, "temperature": 0}
    found = client.chat.completions.create(**asked)
    assert (found.usage.prompt_tokens, found.choices[0].message.content) == (len(tokens), EXPECTED["chats"][1]["text"])
    lines = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("The", "fox")]}]
    both = [{"role": "user", "content": "The\nfox"}]
    answers = [client.chat.completions.create(**asked | {"messages": each}) for each in (lines, both)]
    assert answers[0].usage == answers[1].usage
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_several_answers_and_usage_of_a_stream(client: Any) -> None:
    asked = {"model": "chat", "messages": EXPECTED["chats"][0]["messages"], "max_tokens": 6, "seed": 5, "n": 3}
    found = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in found.choices]
    assert len(set(texts)) == 3
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = client.chat.completions.create(**asked, **options)
    told = [""] * 3
    for event in events:
        told[event.choices[0].index] += event.choices[0].delta.content or ""
    assert told == texts
    assert (last.usage, last.choices) == (found.usage, [])


def test_templates_with_names_and_special_tokens(client: Any) -> None:
    """In transformers' older form, and with its blocks of generation."""
    asked = {"model": "two", "messages": [{"role": "user", "content": "a"}], "max_tokens": 6, "temperature": 0}
    text = "without <|user|>"
    found = client.chat.completions.create(**asked)
    expected = client.completions.create(model="two", prompt=text, max_tokens=6, temperature=0)
    assert (found.usage, found.choices[0].message.content) == (expected.usage, expected.choices[0].text)


@pytest.mark.parametrize("name", [*TEMPLATES, "none"])
def test_a_template_that_fails_is_its_client_s_error(client: Any, server: Running, name: str) -> None:
    """Each is logged once, and chats of others go on."""
    before = server.log.count("refused")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "a"}])
    assert SAID.get(name, "no chat template") in caught.value.body["message"]
    assert "chat template" in caught.value.body["message"]
    assert server.log.count("refused") == before + 1
    asked = {"messages": EXPECTED["chats"][0]["messages"], "max_tokens": 24, "temperature": 0}
    found = client.chat.completions.create(model="chat", **asked)
    assert found.choices[0].message.content == EXPECTED["chats"][0]["text"]
    if name in ("loops", "grows"):
        with pytest.raises(openai.BadRequestError, match=SAID[name]):
            client.chat.completions.create(model=name, **asked)
        # Completions of the same model do not need the template.
        expected = EXPECTED["completions"][0]
        completion = client.completions.create(model=name, prompt=expected["prompt"], max_tokens=24, temperature=0)
        assert completion.choices[0].text == expected["text"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": []}, "`messages`"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}, "text only"),
        ({"messages": [{"role": "user", "content": "a", "mood": "good"}]}, "mood"),
        ({"messages": [{"role": "user", "content": "a", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]}, "calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}]}]}, "calls"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "calls"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": 3}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template": "{{ messages }}"}}, "chat_template"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": "a" * 2000}]}, "at most 512"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(client: Any, options: dict[str, Any], said: str, stream: bool) -> None:
    asked = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "stream": stream} | options
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked)
    assert said in caught.value.body["message"]


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log


def test_templates_write_what_those_of_transformers_write() -> None:
    pytest.importorskip("jinja2")
    template = find_chat_template(FIXTURES / "chat" / "model.onnx")
    assert template is not None
    for expected in EXPECTED["chats"]:
        values = {"messages": expected["messages"], "tools": expected.get("tools")}
        assert asyncio.run(template.render(values)) == expected["rendered"]
    template.close()
    template.close()
    with pytest.raises(UnsupportedError, match="unloaded"):
        asyncio.run(template.render({"messages": []}))


def test_files_that_are_no_templates(tmp_path: Path) -> None:
    for text, said in (
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"chat_template": 3}', "expected a text"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(InputError, match=said):
            find_chat_template(tmp_path / "model.onnx")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "rag", "template": "a"}]}')
    template = find_chat_template(tmp_path / "model.onnx")
    assert template is not None
    with pytest.raises(UnsupportedError, match="no default chat template, but rag"):
        asyncio.run(template.render({"messages": []}))
    (tmp_path / "tokenizer_config.json").unlink()
    assert find_chat_template(tmp_path / "model.onnx") is None
