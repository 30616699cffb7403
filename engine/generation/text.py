"""Text for prompts, and from tokens, by a tokenizer of another library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.errors import InputError, UnsupportedError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """The methods of `tokenizers.Tokenizer` that are used."""

    def encode(self, sequence: str) -> Any:
        """Return an object whose `ids` are the tokens of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; it may end within a character."""


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file `tokenizer.json`, by the package `tokenizers`.

    Raises `UnsupportedError` if the package is not installed, `InputError` if the file cannot be read.
    """
    try:
        import tokenizers
    except ImportError as e:
        raise UnsupportedError(
            "text needs the package tokenizers, which is not installed: pip install 'engine-sdk[text]'; "
            "or give the prompt as numbers of tokens"
        ) from e
    try:
        made: Tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the package raises Exception itself
        raise InputError(f"{path} cannot be read as a tokenizer: {e}") from e
    return made


class TextStream:
    """The text of tokens that come one by one.

    A token may be a part of a character, and its text may depend on the tokens before it; so text is given as soon as
    later tokens cannot change it.

    With `stop`, the text ends before the first of these texts (as in OpenAI's API): text that may be the beginning of
    one is given when it is known not to be. Continue no sequence whose text has ended: `is_stopped`.

    Args:
        tokenizer: turns tokens into text.
        stop: a text, or several.

    Raises `InputError` for an empty text in `stop`.
    """

    def __init__(self, tokenizer: Tokenizer, stop: str | Sequence[str] = ()) -> None:
        self._stop = (stop,) if isinstance(stop, str) else tuple(stop)
        for each in self._stop:
            if not isinstance(each, str) or not each:
                raise InputError(f"stop has {each!r:.80}; expected texts that are not empty")
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # The text of the tokens before `_shown` was returned; those from `_context` on are decoded with the next ones.
        self._context = self._shown = 0
        self._held = ""
        """Text that may be the beginning of one of `_stop`."""
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether one of the texts in `stop` was found."""
        return self._is_stopped

    def add(self, token: int) -> str:
        """Append a token; returns the text that follows what was returned before, or an empty one."""
        if self._is_stopped:
            return ""
        self._tokens.append(token)
        text = self._rest()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._context, self._shown = self._shown, len(self._tokens)
        return self._before_stop(text)

    def end(self) -> str:
        """The rest of the text, with unfinished characters replaced."""
        if self._is_stopped:
            return ""
        held = self._held
        text = self._before_stop(self._rest()) + self._held
        self._held = held  # tokens may follow
        return text

    def _before_stop(self, text: str) -> str:
        """The part of the text that certainly comes before a stop."""
        text, self._held = self._held + text, ""
        places = [place for each in self._stop if (place := text.find(each)) >= 0]
        if places:
            self._is_stopped = True
            return text[: min(places)]
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(each.startswith(text[-length:]) for each in self._stop):
                self._held = text[-length:]
                return text[:-length]
        return text

    def _rest(self) -> str:
        """The text of the tokens that were not shown, after the ones before them."""
        shown = self._tokenizer.decode(self._tokens[self._context : self._shown])
        return self._tokenizer.decode(self._tokens[self._context :])[len(shown) :]
