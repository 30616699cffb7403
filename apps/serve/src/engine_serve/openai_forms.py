"""Answers in the forms of OpenAI's API: completions and chats."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from engine_serve.answers import Answer
from engine_serve.generative_model import GenerativeModel, Piece
from engine_serve.log_forms import CompletionLogs, TokenNames, chat_logs


class Form(ABC):
    """The form of the answers to one request.

    Args:
        model: the name of the model that the request has.
        kind: of an answer as a whole; `event`: of an event.
    """

    def __init__(self, model: str, prefix: str, kind: str, event: str) -> None:
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
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
        """The parts of an answer that are told of its next piece."""


class CompletionForm(Form):
    """Completions; each has the numbers of its tokens, too (`token_ids`).

    Args:
        model: that answers.
        echoes: for each answer, the text that it begins with.
        has_logs: whether log probabilities are told.
    """

    def __init__(self, model: GenerativeModel, echoes: Sequence[str], has_logs: bool) -> None:
        super().__init__(model.name, "cmpl", "text_completion", "text_completion")
        self._echoes, self._has_logs = list(echoes), has_logs
        names = TokenNames(model.text)
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
        model: that answers.
        has_logs: whether log probabilities are told.
    """

    def __init__(self, model: GenerativeModel, has_logs: bool) -> None:
        super().__init__(model.name, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._has_logs, self._names = has_logs, TokenNames(model.text)
        self._begun: set[int] = set()

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """One message."""
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        logs = chat_logs(self._names, answer.tokens, answer.logs) if self._has_logs else None
        return {"index": index, "message": message, "logprobs": logs, "finish_reason": answer.finish_reason}

    def parts(self, index: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """The role before the first piece; then a part for each text, and one for the end."""
        if index not in self._begun:
            self._begun.add(index)
            yield self._part(index, {"role": "assistant", "content": "", "refusal": None})
        logs = None
        if self._has_logs and piece.token is not None and piece.log is not None:
            logs = chat_logs(self._names, [piece.token], [piece.log])
        if piece.text or logs is not None:
            yield self._part(index, {"content": piece.text}, logs)
        if piece.finish_reason is not None:
            yield self._part(index, {}, None, piece.finish_reason)

    @staticmethod
    def _part(index: int, delta: dict[str, Any], logs: Any = None, end: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logs, "finish_reason": end}
