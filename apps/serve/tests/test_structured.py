"""Answers of a structure. If this fails, programs cannot parse what they asked for, or a schema stops the server."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import CONFIG, END, EXPECTED, FIXTURES, Running, running
from engine.errors import InputError

openai = pytest.importorskip("openai")
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
    configs = {
        "chat": CONFIG,
        "endless": CONFIG.replace("stop_tokens", "#"),
        "calls": f'{CONFIG}tool_parser = "hermes"\n',
    }
    for name, config in configs.items():
        shutil.copytree(FIXTURES / "chat", folder / name)
        (folder / name / "config.toml").write_text(config)
    with running(folder) as found:
        yield found


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


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"$ref": "#/$defs/town"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["town", "days"],
            "additionalProperties": False,
            "$defs": {"town": {"enum": ["Ulm", "Köln"]}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "What time it is"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def check_call(call: Any) -> None:
    assert (call.type, call.id[:5]) == ("function", "call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "time":
        assert arguments == {}
        return
    assert call.function.name == "weather"
    assert list(arguments) == ["town", "days"]
    assert arguments["town"] in ("Ulm", "Köln")
    assert 1 <= arguments["days"] <= 9


def told_calls(events: Any) -> tuple[list[dict[str, str]], str, Any]:
    """The calls in the events of an answer, its content, and why it ended."""
    calls: list[dict[str, str]] = []
    content = ""
    for event in events:
        delta = event.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or ():
            if part.id is not None:
                assert part.index == len(calls)
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            calls[part.index]["arguments"] += part.function.arguments
    return calls, content, event.choices[0].finish_reason


def test_a_function_that_is_named(client: Any) -> None:
    asked = {"model": "chat", "messages": MESSAGES, "tools": [TIME, WEATHER], "tool_choice": NAMED}
    found = client.chat.completions.create(**asked, n=3, seed=2)
    for choice in found.choices:
        (call,) = choice.message.tool_calls
        check_call(call)
        assert (call.function.name, choice.message.content, choice.finish_reason) == ("weather", None, "stop")
    calls, content, reason = told_calls(client.chat.completions.create(**asked, seed=2, stream=True))
    expected = found.choices[0].message.tool_calls[0].function
    assert [(call["name"], call["arguments"]) for call in calls] == [("weather", expected.arguments)]
    assert (content, reason) == ("", "stop")


def test_functions_that_are_required(client: Any) -> None:
    asked = {"model": "chat", "messages": MESSAGES, "tools": [TIME, WEATHER], "tool_choice": "required"}
    asked |= {"max_tokens": 170, "temperature": 9}
    found = client.chat.completions.create(**asked, parallel_tool_calls=False, n=8, seed=2)
    for choice in found.choices:
        (call,) = choice.message.tool_calls
        check_call(call)
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert {choice.message.tool_calls[0].function.name for choice in found.choices} == {"time", "weather"}
    several = client.chat.completions.create(**asked, seed=4).choices[0]
    for call in several.message.tool_calls:
        check_call(call)
    calls, content, reason = told_calls(client.chat.completions.create(**asked, seed=4, stream=True))
    assert (content, reason) == ("", several.finish_reason)
    expected = [(call.function.name, call.function.arguments) for call in several.message.tool_calls]
    assert [(call["name"], call["arguments"]) for call in calls] == expected
    cut = client.chat.completions.create(**asked | {"max_tokens": 5}).choices[0]
    assert (cut.message.tool_calls, cut.finish_reason) == (None, "length")


def test_the_prompt_has_the_tools(client: Any) -> None:
    """As transformers writes it, and with calls and their results, whose arguments templates get as objects."""
    expected = EXPECTED["chats"][2]
    asked = {"model": "chat", "messages": expected["messages"], "tools": expected["tools"], "max_tokens": 9}
    found = client.chat.completions.create(**asked, tool_choice="required")
    assert found.usage.prompt_tokens == len(expected["prompt_tokens"])
    without = client.chat.completions.create(**asked, tool_choice="none")
    plain = client.chat.completions.create(model="chat", messages=expected["messages"], max_tokens=9)
    assert without.usage.prompt_tokens == plain.usage.prompt_tokens < found.usage.prompt_tokens
    call = {"id": "a", "type": "function", "function": {"name": "speed_of", "arguments": '{"animal": "dög"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "a", "content": "9"})
    said = client.chat.completions.create(model="chat", messages=messages, max_tokens=9)
    text = '<|assistant|>{"animal": "dög"}<|end|><|tool|>9<|end|><|assistant|>'
    same = client.completions.create(model="chat", prompt=text, max_tokens=9)
    assert said.usage.prompt_tokens == same.usage.prompt_tokens


def test_calls_that_a_model_chooses(client: Any) -> None:
    """A text without calls stays one; what is a call is tested apart."""
    asked = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    found = client.chat.completions.create(model="calls", tools=[TIME], **asked).choices[0]
    assert (found.message.tool_calls, found.finish_reason) == (None, "length")
    calls, content, reason = told_calls(
        client.chat.completions.create(model="calls", tools=[TIME], **asked, stream=True)
    )
    assert (calls, content, reason) == ([], found.message.content, "length")
    with pytest.raises(openai.BadRequestError, match="needs `tool_parser`"):
        client.chat.completions.create(model="chat", tools=[TIME], **asked)


def read(text: str, size: int) -> tuple[str, list[tuple[str, str]], str]:
    """The content, the calls, and the reason for the end, of a text that comes in pieces."""
    from engine_serve.tool_calls import Call, HermesCalls

    reader = HermesCalls()
    parts = [part for begin in range(0, len(text), size) for part in reader.read(text[begin : begin + size])]
    parts += reader.end("stop")
    content = "".join(part for part in parts if isinstance(part, str))
    return (
        content,
        [(part.name or "", part.arguments) for part in parts if isinstance(part, Call)],
        reader.reason("stop"),
    )


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_calls_in_the_form_of_hermes(size: int) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "<b>"}}\n</tool_call>'
    one, two = [("f", '{"a": "<b>"}')], [("f", '{"a": "<b>"}')] * 2
    for text, expected in (
        (call, ("", one, "tool_calls")),
        (f"Let me see.\n{call}\n{call}\n", ("Let me see.", two, "tool_calls")),
        (call.removesuffix("</tool_call>"), ("", one, "tool_calls")),
        ("a <tool or <tool_cal\n", ("a <tool or <tool_cal\n", [], "stop")),
        ("<tool_call>no</tool_call> b", ("<tool_call>no</tool_call> b", [], "stop")),
        ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")], "tool_calls")),
        ('<tool_call>{"name": 3}</tool_call>', ('<tool_call>{"name": 3}</tool_call>', [], "stop")),
        ("<tool_call>[]", ("<tool_call>[]", [], "stop")),
        ("", ("", [], "stop")),
        (" a  b ", (" a  b ", [], "stop")),
    ):
        assert read(text, size) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": 3}, "`tools`"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]}, "parameters"),
        ({"tools": [TIME, TIME]}, "time twice"),
        ({"tools": [TIME] * 129}, "128 tools"),
        ({"tool_choice": "required"}, "without `tools`"),
        ({"tools": [], "tool_choice": NAMED}, "without `tools`"),
        ({"tools": [TIME], "tool_choice": NAMED}, "weather"),
        ({"tools": [TIME], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "tools": []}}, "allowed_tools"),
        ({"tools": [TIME], "tool_choice": "required", "parallel_tool_calls": 1}, "parallel_tool_calls"),
        *(
            ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", **more}}}],
              "tool_choice": choice}, said)
            for choice in ("required", {"type": "function", "function": {"name": "a"}})
            for more, said in (
                ({"properties": {"b": {"type": "wizard"}}}, "wizard"),
                ({"properties": {"b": {"enum": []}}, "required": ["b"]}, "that an answer can match"),
                ({"properties": {"b": {"$ref": "#/$defs/c"}}, "required": ["b"]}, "`tools`"),
                ({"properties": 3}, "`tools`"),
                ({"functions": 3, "not": {}}, "`tools`"),
            )
        ),
        ({"functions": [TIME["function"]]}, "functions"),
    ],
)  # fmt: skip
def test_tools_that_are_refused(client: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chat", messages=MESSAGES, **options)
    assert said in caught.value.body["message"]


@pytest.mark.parametrize("size", [300, 299, 302, 350, 1000])
def test_vocabularies_that_are_padded(size: int) -> None:
    """A model may have logits of more tokens than its tokenizer has; none of these is chosen."""
    from engine_serve.model_text import find_text
    from engine_serve.structured_output import Grammars

    text = find_text(FIXTURES / "chat" / "model.onnx", None)
    assert text is not None
    constraint = Grammars("m", text, [END, 999]).constraint({"type": "integer"}, "it")()
    logits = np.arange(size, dtype=np.float32)
    before = logits.copy()
    found = constraint.allowed(logits)
    assert np.array_equal(logits, before)
    allowed = np.flatnonzero(found > -np.inf)
    assert {text.bytes_of(int(token)) for token in allowed} == {b"-", *(b"%d" % digit for digit in range(10))}
    assert np.array_equal(found[allowed], logits[allowed])
    assert not constraint.add(int(allowed[-1]))
    with pytest.raises(InputError, match="it cannot be followed any more"):
        constraint.add(int(np.flatnonzero(np.isinf(found))[7]))


def test_a_model_without_stop_tokens(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="needs `stop_tokens`"):
        client.chat.completions.create(model="endless", messages=MESSAGES, response_format=form(SCHEMA))


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
