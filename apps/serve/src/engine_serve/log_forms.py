"""Log probabilities as OpenAI's API has them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Final

from engine.generation import TokenLogProbabilities
from engine_serve.model_text import ModelText

_NEVER: Final = -9999.0
"""What OpenAI's API has for tokens that are not possible; JSON has no infinities."""


class TokenNames:
    """The texts of single tokens."""

    def __init__(self, text: ModelText | None) -> None:
        self._text = text

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a token; None if it has none."""
        return None if self._text is None or self._text.problem else self._text.bytes_of(token)

    def name(self, token: int) -> str:
        """The text of a token. One that is a part of a character is `bytes:\\xe2`, as in OpenAI's API; one without text
        is `token_id:17`, as vLLM has it.
        """
        found = self.bytes_of(token)
        if found is None:
            return f"token_id:{token}"
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


class CompletionLogs:
    """The log probabilities of one completion, whose events go on where the last one ended.

    Args:
        names: the texts of tokens.
        offset: the length of what the text begins with, such as the prompt.
    """

    def __init__(self, names: TokenNames, offset: int) -> None:
        self._names, self._offset = names, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def form(self, tokens: Sequence[int], logs: Sequence[TokenLogProbabilities]) -> dict[str, Any]:
        """Those of the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._names.bytes_of(token) or b""))
        chosen = [_finite(log.chosen) for log in logs]
        top = [
            {self._names.name(each): _finite(value) for each, value in (*log.top, (token, log.chosen))}
            for token, log in zip(tokens, logs, strict=True)
        ]
        return {
            "tokens": [self._names.name(token) for token in tokens],
            "token_logprobs": chosen,
            "top_logprobs": top,
            "text_offset": offsets,
        }


def chat_logs(names: TokenNames, tokens: Sequence[int], logs: Sequence[TokenLogProbabilities]) -> dict[str, Any]:
    """Those of tokens of a chat's answer."""

    def entry(token: int, value: float) -> dict[str, Any]:
        found = names.bytes_of(token)
        return {"token": names.name(token), "logprob": _finite(value), "bytes": None if found is None else list(found)}

    content = [
        entry(token, log.chosen) | {"top_logprobs": [entry(each, value) for each, value in log.top]}
        for token, log in zip(tokens, logs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _finite(value: float) -> float:
    return max(value, _NEVER)
