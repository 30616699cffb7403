"""Calls of tools in the text of an answer, which are read while it is written."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from engine_serve.tools import ToolChoice

_BEGIN: Final = "<tool_call>"
_END: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """A part of a call: the first one has the name, later ones only further `arguments`, a text of JSON."""

    place: int
    arguments: str
    name: str | None = None
    identity: str | None = None

    @classmethod
    def begun(cls, place: int, name: str, arguments: str = "") -> Call:
        """The first part of a call."""
        return cls(place, arguments, name, f"call_{uuid.uuid4().hex[:24]}")

    @property
    def form(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        if self.name is None:
            return {"index": self.place, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.place, "id": self.identity, "type": "function", "function": function}


class CallReader(ABC):
    """Reads the text of one answer."""

    @abstractmethod
    def read(self, text: str) -> Iterator[str | Call]:
        """The contents, and the parts of calls, that the next text completes."""

    @abstractmethod
    def end(self, reason: str) -> Iterator[str | Call]:
        """The rest, at the end of an answer for this reason."""

    def reason(self, reason: str) -> str:
        """Why the answer has ended, in the terms of OpenAI's API."""
        return reason


def reader_of(choice: ToolChoice) -> CallReader | None:
    """What reads an answer with this choice; None if it calls no tools."""
    if choice.kind == "none":
        return None
    return NamedCall(choice.name) if choice.kind == "named" else RequiredCalls() if choice.structure else HermesCalls()


class NamedCall(CallReader):
    """The text is the arguments of one function. The reason for the end stays, as in OpenAI's API."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def read(self, text: str) -> Iterator[str | Call]:
        """All of it."""
        if text and self._name is not None:
            yield Call.begun(0, self._name, text)
            self._name = None
        elif text:
            yield Call(0, text)

    def end(self, reason: str) -> Iterator[str | Call]:
        """Nothing is left."""
        return iter(())


class _Calls(CallReader):
    """Knows how many calls there are."""

    def __init__(self) -> None:
        self._text = ""
        self._count = 0

    def reason(self, reason: str) -> str:
        """`tool_calls`, if there are some, and the answer was not cut off."""
        return "tool_calls" if reason == "stop" and self._count else reason

    def _call(self, name: str, arguments: Any) -> Call:
        self._count += 1
        return Call.begun(self._count - 1, name, json.dumps(arguments, ensure_ascii=False))


class RequiredCalls(_Calls):
    """The text is a list of calls, each with `name` and `parameters`."""

    def read(self, text: str) -> Iterator[str | Call]:
        """A call is told when it is complete; those of an answer that is cut off are not."""
        self._text += text
        while "}" in text and self._text.startswith(("[", ", ")):
            begin = 1 if self._text[0] == "[" else 2
            try:
                call, end = json.JSONDecoder().raw_decode(self._text, begin)
            except ValueError:
                return
            self._text = self._text[end:]
            yield self._call(call["name"], call["parameters"])

    def end(self, reason: str) -> Iterator[str | Call]:
        """Nothing is left."""
        return iter(())


class HermesCalls(_Calls):
    """The text has calls between `<tool_call>` and `</tool_call>`, each an object with `name` and `arguments`.

    What is no such object stays a text.
    """

    def read(self, text: str) -> Iterator[str | Call]:
        """The text before a call at once, unless it may be the beginning of one, and a call when it is complete."""
        self._text += text
        while True:
            before, begin, rest = self._text.partition(_BEGIN)
            held = 0 if begin else next((n for n in range(len(_BEGIN) - 1, 0, -1) if before.endswith(_BEGIN[:n])), 0)
            told = before[: len(before) - held].rstrip()  # white space before a call is no content
            if told:
                yield told
            if not begin:
                self._text = self._text[len(told) :]
                return
            inner, end, after = rest.partition(_END)
            if not end:
                self._text = begin + rest
                return
            self._text = after
            yield self._parsed(inner)

    def end(self, reason: str) -> Iterator[str | Call]:
        """Of a call without an end, as some models write, the call; otherwise the text."""
        before, begin, inner = self._text.partition(_BEGIN)
        self._text = ""
        if not begin:
            if before.strip() or not self._count:
                yield before
            return
        if before.strip():
            yield before.rstrip()
        yield self._parsed(inner, "")

    def _parsed(self, inner: str, end: str = _END) -> str | Call:
        try:
            call = json.loads(inner)
            name, arguments = call["name"], call.get("arguments", {})
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return _BEGIN + inner + end
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return _BEGIN + inner + end
        return self._call(name, arguments)
