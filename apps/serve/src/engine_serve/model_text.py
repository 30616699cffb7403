"""`ModelText`: the tokenizer of a language model, and the bytes of single tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from engine.errors import InputError, UnsupportedError
from engine.generation import TextStream, read_tokenizer
from engine_serve.unicode import is_unicode

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece has for a space."""


class ModelText:
    """Text of a model.

    Args:
        tokenizer: that of the package `tokenizers`.
        vocabulary: of how many tokens the model computes logits; None if it does not say.
    """

    def __init__(self, tokenizer: Any, vocabulary: int | None) -> None:
        self.tokenizer = tokenizer
        self.size = 1 + max(self.tokenizer.get_vocab().values(), default=-1)
        self.problem = ""
        """Why the tokenizer is not the model's."""
        if vocabulary is not None and self.size > vocabulary:
            self.problem = (
                f"its tokenizer.json has tokens up to {self.size - 1}, and the model's logits are of {vocabulary} "
                "tokens, so they do not belong together; put the model's own tokenizer beside it"
            )

    def require(self) -> None:
        """Raise `UnsupportedError` if the tokenizer is not the model's."""
        if self.problem:
            raise UnsupportedError(f"the model has no text: {self.problem}")

    def encode(self, text: str, has_special_tokens: bool = True) -> list[int]:
        """The tokens of a prompt, with those that the tokenizer adds, such as of the beginning, or without.

        Raises `InputError` for what is not a Unicode text, and what `require` raises.
        """
        self.require()
        self.require_unicode(text)
        return list(self.tokenizer.encode(text, add_special_tokens=has_special_tokens).ids)

    @staticmethod
    def require_unicode(*texts: str | None) -> None:
        """Raise `InputError` for what is not a Unicode text."""
        if not all(text is None or is_unicode(text) for text in texts):
            raise InputError("the prompt has a half of a surrogate pair, which is not a character")

    def decode(self, tokens: Collection[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self.tokenizer.decode(list(tokens)))

    def stream(self, stop: tuple[str, ...] = ()) -> TextStream:
        """The text of tokens that come one by one, which ends before one of `stop`."""
        return TextStream(self.tokenizer, stop)

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a token, which may be a part of a character; None for a token that the tokenizer lacks."""
        if (special := self._added.get(token)) is not None:
            return special.encode()
        name = self.tokenizer.id_to_token(token)
        if name is None:
            return None
        if "ByteLevel" in self._decoders and all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        if "ByteFallback" in self._decoders and (found := _BYTE.fullmatch(name)):
            return bytes([int(found[1], 16)])
        if _SPACE in name:
            return str(name).replace(_SPACE, " ").encode()
        return str(self.tokenizer.decode([token])).encode()

    @cached_property
    def _added(self) -> dict[int, str]:
        return {token: added.content for token, added in self.tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def _decoders(self) -> set[str]:
        """The kinds of steps by which tokens become text."""
        decoder = self.tokenizer.decoder
        state = {} if decoder is None else json.loads(decoder.__getstate__())
        return {step["type"] for step in (state, *state.get("decoders", ())) if "type" in step}


def find_text(path: Path, vocabulary: int | None) -> ModelText | None:
    """The tokenizer beside a model's file, if there is one. Raises the errors of `read_tokenizer`."""
    beside = path.with_name("tokenizer.json")
    return ModelText(read_tokenizer(beside), vocabulary) if beside.is_file() else None


def _byte_characters() -> dict[str, int]:
    """The byte of each character in the names of byte-level tokens (Radford et al. 2019, GPT-2, `bytes_to_unicode`):
    printable bytes are themselves, the others follow from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES: Final = _byte_characters()
