"""`ChatTemplate`: how a model's tokenizer writes a chat as one text, rendered in a process with limits."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.errors import InputError, UnsupportedError
from engine_serve.daemon_threads import DaemonThreads
from engine_serve.limited_process import LimitedProcess

_CPU_SECONDS: Final = 2.0
"""The most CPU time of a rendering; usual templates take less than a thousandth of it."""
_MEMORY_BYTES: Final = 512 << 20
_DEFAULT: Final = "default"
_WITH_TOOLS: Final = "tool_use"


class ChatTemplate:
    """The templates of a tokenizer, which writes chats with tools by another one, if it has two. Thread-safe.

    A process renders them, from the first chat on until `close`; one that exceeds its limits is ended, and the next
    chat starts another.

    Args:
        sources: the templates by their names.
        tokens: the special tokens that they can use, such as `eos_token`.
    """

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._sources, self._tokens = dict(sources), dict(tokens)
        self._threads = DaemonThreads("engine-chat-template")
        self._process = LimitedProcess(
            "engine_serve.template_process",
            {"templates": self._sources},
            "the chat template, for these messages,",
            cpu_seconds=_CPU_SECONDS,
            memory_bytes=_MEMORY_BYTES,
        )

    async def render(self, values: Mapping[str, Any]) -> str:
        """The text of a chat, for the next answer.

        `values` has `messages`, and may have `tools` and other values that the template reads. Raises `InputError` if
        the template refuses them, `UnsupportedError` if it fails or exceeds its limits, or jinja2 is not installed.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise UnsupportedError("chats need the package jinja2: pip install 'engine-serve[openai]'")
        name = _WITH_TOOLS if values.get("tools") and _WITH_TOOLS in self._sources else _DEFAULT
        if name not in self._sources:
            raise UnsupportedError(f"the tokenizer has no default chat template, but {', '.join(self._sources)}")
        asked = {"name": name, "values": {**self._tokens, "add_generation_prompt": True, **values}}
        reply = await self._threads.run(self._process.reply, asked)
        if "text" in reply:
            return str(reply["text"])
        if reply.get("is_refused"):
            raise InputError(f"the chat template refuses the messages: {reply['error']}")
        raise UnsupportedError(f"the chat template failed for these messages: {reply['error']}")

    def close(self) -> None:
        """End the process; a rendering in progress ends with an error. Further calls have no effect."""
        self._process.close()


def find_chat_template(path: Path) -> ChatTemplate | None:
    """The chat template beside a model's file, in the files of `transformers`; None without one.

    Raises `InputError` if a file is not what it should be.
    """
    folder, sources = path.parent, dict[str, str]()
    config = _object(folder / "tokenizer_config.json")
    for given in (config.get("chat_template"), _object(folder / "chat_template.json").get("chat_template")):
        if isinstance(given, str):
            sources[_DEFAULT] = given
        elif isinstance(given, list):
            sources |= {str(each.get("name")): str(each.get("template")) for each in given if isinstance(each, dict)}
        elif given is not None:
            raise InputError(f"{folder}: `chat_template` is {given!r:.40}; expected a text, or a list of templates")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = _text(file)
    if (folder / "chat_template.jinja").is_file():
        sources[_DEFAULT] = _text(folder / "chat_template.jinja")
    return ChatTemplate(sources, _special_tokens(config)) if sources else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in found.items() if key.endswith("_token") and isinstance(value, str)}


def _object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; an empty one without a file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(found, dict):
        raise InputError(f"{path} has a {type(found).__name__}; expected an object")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path} cannot be read: {e}") from e
