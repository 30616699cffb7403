"""`Grammars`: answers of a JSON schema, by the package llguidance."""

from __future__ import annotations

import copy
import importlib.util
import json
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, UnsupportedError
from engine.generation import Constraint
from engine_serve.limited_process import LimitedProcess
from engine_serve.model_text import ModelText

Array = NDArray[Any]

# As Python and most examples in prompts write JSON. Free white space could go on for ever.
_SPACES: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MAX_REASON: Final = 400
"""The most characters of a reason by llguidance, which may repeat the schema."""


_MAX_KEPT: Final = 32
"""How many schemas stay compiled for later requests."""
_CHECKER: Final = LimitedProcess(
    "engine_serve.grammar_process",
    {"options": _SPACES},
    "the check of the schema",
    cpu_seconds=5.0,
    memory_bytes=1 << 30,
)


class Grammars:
    """Makes constraints for one model. Thread-safe; the first one takes a second for a large vocabulary.

    Args:
        model: the name of the model, for messages.
        text: its tokenizer.
        stop_tokens: those that end its answers.
    """

    def __init__(self, model: str, text: ModelText, stop_tokens: Collection[int]) -> None:
        self._model, self._text, self._stop_tokens = model, text, sorted(stop_tokens)
        self._lock, self._tokenizer = threading.Lock(), None
        self._kept: dict[str, Any] = {}
        """Matchers by their schemas; the last one was used last."""

    def constraint(self, schema: Mapping[str, Any], what: str) -> Callable[[], Constraint]:
        """Makes a constraint for each answer that must match a schema, which `what` gave. Blocks.

        Raises `InputError` for a schema that is not valid, or that nothing matches, and `UnsupportedError` for one that
        uses what llguidance does not support or takes too long, without llguidance, and for a model without stop
        tokens.
        """
        if importlib.util.find_spec("llguidance") is None:
            raise UnsupportedError(f"{what} needs the package llguidance: pip install 'engine-serve[openai]'")
        key = json.dumps(schema)
        with self._lock:
            matcher = self._kept.pop(key, None)
        if matcher is None:
            matcher = self._matcher(schema, what)
        with self._lock:
            self._kept[key] = matcher
            while len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return lambda: GrammarConstraint(matcher.deep_copy(), what)

    def _matcher(self, schema: Mapping[str, Any], what: str) -> Any:
        import llguidance

        made_for = self._made_for(what)
        _require_valid(_CHECKER.reply({"schema": schema}).get("error", ""), what)
        grammar = llguidance.LLMatcher.grammar_from_json_schema(dict(schema), overrides=_SPACES)
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(made_for, grammar, log_level=0, limits=limits)
        _require_valid(matcher.get_error() if matcher.is_error() else "", what)
        return matcher

    def _made_for(self, what: str) -> Any:
        """The tokenizer in llguidance's form."""
        if not self._stop_tokens:
            raise UnsupportedError(
                f"{what} needs `stop_tokens` in the configuration of model `{self._model}`, since one of them ends an "
                "answer that could go on"
            )
        with self._lock:
            if self._tokenizer is None:
                import llguidance

                plain = copy.copy(self._text.tokenizer)
                plain.no_padding()
                plain.no_truncation()
                ends = [token for token in self._stop_tokens if token < self._text.size]
                try:
                    self._tokenizer = llguidance.LLTokenizer(plain.to_str(), eos_token=ends)
                except Exception as e:  # the package raises others, too
                    raise UnsupportedError(f"{what} is not supported for this tokenizer: {e}") from e
            return self._tokenizer


def _require_valid(reason: str, what: str) -> None:
    """Raise the error for what llguidance says of a schema, if it says anything."""
    if "nimplemented" in reason or "not supported" in reason:
        raise UnsupportedError(f"{what} uses what is not supported: {reason[:_MAX_REASON]}")
    if reason:
        raise InputError(f"{what} is not a schema that an answer can match: {reason[:_MAX_REASON]}")


class GrammarConstraint:
    """Allows the tokens that a grammar allows (`engine.generation.Constraint`).

    Args:
        matcher: llguidance's, at the beginning of an answer.
        what: what the grammar was made of, for messages.
    """

    def __init__(self, matcher: Any, what: str) -> None:
        self._matcher, self._what = matcher, what

    def allowed(self, logits: Array) -> Array:
        """The logits with minus infinity for other tokens. Raises `InputError` if the grammar is too complex."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little", count=min(logits.size, 8 * bits.size)).view(bool)
        found = np.full_like(logits, -np.inf)  # also for tokens that the tokenizer lacks, which pad a vocabulary
        np.copyto(found[: mask.size], logits[: mask.size], where=mask)
        return found

    def add(self, token: int) -> bool:
        """Take note of a token; returns whether nothing can follow."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"{self._what} cannot be followed any more: {self._matcher.get_error()[:_MAX_REASON]}")
