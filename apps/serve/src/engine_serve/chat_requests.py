"""What OpenAI's chats ask for: the messages, as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.errors import InputError, UnsupportedError
from engine_serve.openai_requests import Asked, asked_of, top_of_chat
from engine_serve.tools import ToolChoice, tool_choice

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_MESSAGE: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal"}
)
_CHAT: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs", "max_completion_tokens"}
    | {"chat_template_kwargs", "modalities", "tools", "tool_choice", "parallel_tool_calls"}
)
"""Keys of a chat that are not parameters of the generation."""
_OWN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""What `chat_template_kwargs` must not have."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for the next message of a chat; `values` are those of the template."""

    asked: Asked
    values: dict[str, Any]
    choice: ToolChoice


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request in a body. Raises `InputError` and `UnsupportedError`."""
    given = {key: value for key, value in body.items() if value is not None}
    if given.get("modalities", ["text"]) != ["text"]:
        raise UnsupportedError(f'`modalities` is {given["modalities"]!r:.80}; the models here answer with ["text"]')
    parameters = {key: value for key, value in given.items() if key not in _CHAT}
    if "max_completion_tokens" in given:
        if given.get("max_tokens", given["max_completion_tokens"]) != given["max_completion_tokens"]:
            raise InputError("`max_tokens` and `max_completion_tokens` are both given, and differ; leave one out")
        parameters["max_tokens"] = given["max_completion_tokens"]
    values = {**_template_values(given), "messages": messages_of(given.get("messages"))}
    choice, asked = tool_choice(given), asked_of(given, top_of_chat(given), parameters)
    if choice.tools:
        values["tools"] = choice.tools
    if choice.structure is not None:  # such an answer has no content, whose format could matter
        asked = replace(asked, structure=choice.structure)
    return ChatRequest(asked, values, choice)


def messages_of(given: Any) -> list[dict[str, Any]]:
    """The messages of a chat, whose contents are texts, and whose calls of tools have their arguments as objects, as
    chat templates expect them. Raises `InputError` and `UnsupportedError`.
    """
    if not isinstance(given, list) or not given:
        raise InputError('`messages` must be a list of messages, such as [{"role": "user", "content": "Hello"}]')
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _template_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values = given.get("chat_template_kwargs", {})
    if not isinstance(values, dict) or _OWN.intersection(values):
        raise InputError(f"`chat_template_kwargs` must be an object without {', '.join(sorted(_OWN))}")
    return values


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"`{where}` must be an object")
    message = {key: value for key, value in given.items() if value is not None and value != []}
    if unknown := sorted(message.keys() - _MESSAGE):
        raise InputError(f"`{where}` has the unknown key {unknown[0]!r:.80}; expected {', '.join(sorted(_MESSAGE))}")
    if message.get("role") not in _ROLES:
        raise InputError(f"`{where}.role` is {message.get('role')!r:.40}; expected one of {', '.join(_ROLES)}")
    for key in message.keys() - {"role", "content", "tool_calls"}:
        if not isinstance(message[key], str):
            raise InputError(f"`{where}.{key}` is {message[key]!r:.40}; expected a text")
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], f"{where}.tool_calls")
    elif "content" not in message:
        if given.get("content") != []:
            raise InputError(f"`{where}.content` is missing; expected a text")
        message["content"] = ""
    if "content" in message:
        message["content"] = _content(message["content"], f"{where}.content")
    return message


def _content(given: Any, where: str) -> str:
    """A text, or the texts of the parts, a line each."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise InputError(f"`{where}` is {given!r:.40}; expected a text, or a list of parts")
    texts = []
    for part in given:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" and isinstance(kind, str):
            raise UnsupportedError(f"`{where}` has a part of type {kind!r:.40}; the models here read text only")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InputError(f'`{where}` has the part {part!r:.80}; expected {{"type": "text", "text": "..."}}')
        texts.append(part["text"])
    return "\n".join(texts)


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Calls of tools, whose arguments OpenAI's API has as a text of JSON."""
    calls = []
    for call in given if isinstance(given, list) else [given]:
        try:
            function = call["function"]
            arguments = json.loads(function["arguments"])
            if not isinstance(function["name"], str) or not isinstance(arguments, dict):
                raise TypeError
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            raise InputError(
                f"`{where}` has {call!r:.120}; expected calls of functions with a `name`, and `arguments` that are an "
                'object as a text of JSON, such as "{}"'
            ) from e
        calls.append({**call, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return calls
