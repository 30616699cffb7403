"""Answers in the forms of OpenAI's API: completions and chats."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from engine_serve.answers import Answer
from engine_serve.generative_model import Piece
from engine_serve.log_forms import CompletionLogs, TokenNames, chat_logs
from engine_serve.model_text import ModelText
from engine_serve.tool_calls import Call, CallReader, reader_of
from engine_serve.tools import ToolChoice


class Form(ABC):
    """The form of the answers to one request.

    Args:
        name: that of the model in the request.
        kind: of an answer as a whole; `event`: of an event.
    """

    def __init__(self, name: str, prefix: str, kind: str, event: str) -> None:
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        self._kind, self._event = kind, event

    def whole(self, answers: Sequence[Answer], usage: dict[str, int]) -> dict[str, Any]:
        """All answers at once."""
        choices = [self.choice(index, answer) for index, answer in enumerate(answers)]
        return self._head | {"object": self._kind, "choices": choices, "usage": usage}

    def event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An event with parts of answers."""
        return self._head | {"object": self._event, "choices": choices} | more

    @abstractmethod
    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """One answer."""

    @abstractmethod
    def parts(self, index: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """The parts of the answer for the next piece."""


class CompletionForm(Form):
    """Completions; each has the numbers of its tokens, too (`token_ids`).

    Args:
        name: that of the model in the request.
        text: of the model.
        echoes: for each answer, the text that it begins with.
        has_logs: whether the answer has log probabilities.
    """

    def __init__(self, name: str, text: ModelText | None, echoes: Sequence[str], has_logs: bool) -> None:
        super().__init__(name, "cmpl", "text_completion", "text_completion")
        self._echoes, self._has_logs = list(echoes), has_logs
        names = TokenNames(text)
        self._logs = [CompletionLogs(names, len(echo)) for echo in echoes]

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """One completion."""
        echo, self._echoes[index] = self._echoes[index], ""
        logs = self._logs[index].form(answer.tokens, answer.logs) if self._has_logs and answer.tokens else None
        return {
            "index": index,
            "text": echo + answer.text,
            "logprobs": logs,
            "finish_reason": answer.finish_reason,
            "token_ids": answer.tokens,
        }

    def parts(self, index: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """A part for each token, and one for the end."""
        answer = Answer()
        answer.add(piece)
        yield self.choice(index, answer)


class ChatForm(Form):
    """The next messages of a chat.

    Args:
        name: that of the model in the request.
        text: of the model.
        has_logs: whether the answer has log probabilities.
        choice: which tools they call.
    """

    def __init__(self, name: str, text: ModelText | None, has_logs: bool, choice: ToolChoice) -> None:
        super().__init__(name, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._has_logs, self._names, self._choice = has_logs, TokenNames(text), choice
        self._readers: dict[int, CallReader | None] = {}

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """One message."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        reason = answer.finish_reason or ""
        if (reader := reader_of(self._choice)) is not None:
            parts = [*reader.read(answer.text), *reader.end(reason)]
            message["content"] = "".join(part for part in parts if isinstance(part, str)) or None
            message["tool_calls"] = [
                {key: value for key, value in part.form.items() if key != "index"}
                for part in parts
                if isinstance(part, Call)
            ] or None
            reason = reader.reason(reason)
        logs = chat_logs(self._names, answer.tokens, answer.logs) if self._has_logs else None
        return {"index": index, "message": message, "logprobs": logs, "finish_reason": reason}

    def parts(self, index: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """The role before the first piece; then a part for each text or call, and one for the end."""
        if index not in self._readers:
            self._readers[index] = reader_of(self._choice)
            yield self._part(index, {"role": "assistant", "content": "", "refusal": None})
        reader, reason = self._readers[index], piece.finish_reason
        told: list[str | Call] = [piece.text] if piece.text else []
        if reader is not None:
            told = [*reader.read(piece.text), *(reader.end(reason) if reason is not None else ())]
        logs = None
        if self._has_logs and piece.token is not None and piece.log is not None:
            logs = chat_logs(self._names, [piece.token], [piece.log])
        for place, part in enumerate(told or ([""] if logs is not None else [])):
            delta = {"content": part} if isinstance(part, str) else {"tool_calls": [part.form]}
            yield self._part(index, delta, logs if place == 0 else None)
        if reason is not None:
            yield self._part(index, {}, None, reason if reader is None else reader.reason(reason))

    @staticmethod
    def _part(index: int, delta: dict[str, Any], logs: Any = None, end: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logs, "finish_reason": end}
