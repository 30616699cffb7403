"""`Sampling`: how the next token is chosen from a model's logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.startup import dataclass

Array = NDArray[Any]

_LARGEST: Final = float(np.finfo(np.float64).max)
_LARGEST_TOKEN: Final = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. By default, it is the one with the largest logit, the first of several.

    The logits are changed by `logit_bias`, `repetition_penalty`, then both other penalties. With a temperature above 0,
    the token is drawn from softmax(logits / temperature), of the candidates that `top_k`, `top_p` and `min_p` leave, in
    this order.

    Attributes:
        repetition_penalty: divides the positive logits of tokens that the sequence already has, and multiplies negative
            ones (Keskar et al. 2019, CTRL, section 4.1); 1 changes nothing.
        temperature: 0 takes the largest logit; below 1 favours likely tokens, above 1 unlikely ones.
        top_k: only this many of the likeliest tokens are candidates; 0 is all.
        top_p: only the likeliest tokens whose probabilities together reach this are candidates (Holtzman et al. 2020,
            The Curious Case of Neural Text Degeneration, section 3.1); 1 is all.
        seed: the seed of the drawn numbers; None draws another one each time.
        min_p: only tokens with at least this share of the likeliest token's probability are candidates (Nguyen et al.
            2024, Turning Up the Heat: Min-p Sampling, section 3; as in transformers and llama.cpp); 0 is all.
        presence_penalty: subtracted from the logits of tokens that were generated before, but not from those that only
            the prompt has (OpenAI's API, as in vLLM); a negative one favours them.
        frequency_penalty: the same, once for each time that the token was generated.
        logit_bias: added to the logits of these tokens (OpenAI's API); minus infinity forbids a token. Kept as pairs.

    Raises `InputError` for values that are out of range.
    """

    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        limits: dict[str, tuple[Callable[[float], bool], str]] = {
            "repetition_penalty": (lambda value: value > 0, "a number above 0"),
            "temperature": (lambda value: value >= 0, "a number of 0 or more"),
            "top_p": (lambda value: 0 < value <= 1, "a number above 0, and 1 at most"),
            "min_p": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
            "presence_penalty": (lambda value: True, "a finite number"),
            "frequency_penalty": (lambda value: True, "a finite number"),
        }
        for name, (is_allowed, allowed) in limits.items():
            value = _number(getattr(self, name))
            if not math.isfinite(value) or not is_allowed(value):
                raise InputError(f"Sampling: {name} is {_shown(getattr(self, name))}; expected {allowed}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"Sampling: top_k is {_shown(self.top_k)}; expected a number of tokens, or 0 for all")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise InputError(f"Sampling: seed is {_shown(self.seed)}; expected an integer of 0 or more, or None")
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))

    def check(self, vocabulary: int | None) -> None:
        """Raise `InputError` if `logit_bias` has a token that a model of so many does not have; None is not known."""
        for token, _ in self._bias:
            if vocabulary is not None and token >= vocabulary:
                raise InputError(f"Sampling: logit_bias has token {token}; expected 0 to {vocabulary - 1}")

    def choose(self, logits: Array, seen: Array, random: np.random.Generator, generated: Array | None = None) -> int:
        """The next token of a sequence.

        Args:
            logits: of all tokens, a vector of real numbers; NaN and minus infinity are never chosen.
            seen: the tokens that the sequence has.
            random: draws the number, where one is needed.
            generated: those of `seen` that were generated; by default all.

        Raises `InputError` if no logit is a number, and what `check` raises.
        """
        if self.temperature == 0 and not self.changes_scores and logits.dtype.kind == "f":
            likeliest = int(logits.argmax()) if logits.size else 0  # NaN would be the largest
            if logits.size and logits[likeliest] > -np.inf:
                return likeliest
        scores = self.scores(logits, seen, generated)
        if self.temperature == 0:
            return int(scores.argmax())
        order, shares = self._candidates(scores)
        return int(order[min(int(np.searchsorted(np.cumsum(shares), random.random(), side="right")), len(order) - 1)])

    def probabilities(self, logits: Array, seen: Array, generated: Array | None = None) -> Array:
        """The probability with which `choose` chooses each token, a vector of float64; its arguments and errors."""
        scores = self.scores(logits, seen, generated)
        found = np.zeros(scores.size)
        if self.temperature == 0:
            found[scores.argmax()] = 1
        elif not self.top_k and self.top_p == 1 and self.min_p == 0 and scores.max() < np.inf:
            found = self._weights(scores, scores.max())
            found /= found.sum()
        else:
            order, shares = self._candidates(scores)
            found[order] = shares
        return found

    def scores(self, logits: Array, seen: Array, generated: Array | None = None) -> Array:
        """The logits after the bias and the penalties, a vector of float64; the arguments and errors of `choose`.

        Tokens that must not be chosen have minus infinity.
        """
        scores = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
        self.check(scores.size)
        if self._bias:
            tokens, added = np.array([token for token, _ in self._bias]), np.array([bias for _, bias in self._bias])
            with np.errstate(invalid="ignore"):  # an infinite logit of a forbidden token
                scores[tokens] = np.where(added == -np.inf, added, _limited(scores[tokens] + added, scores[tokens]))
        if not scores.size or scores.max() == -np.inf:
            raise InputError("no token can be chosen: every logit is NaN or minus infinity")
        if self.repetition_penalty != 1:
            found = np.unique(seen)
            found = found[found < scores.size]  # a model may read more tokens than it can choose
            scores[found] = self._penalized(scores[found])
        if self.presence_penalty != 0 or self.frequency_penalty != 0:
            found, counts = np.unique(seen if generated is None else generated, return_counts=True)
            found, counts = found[found < scores.size], counts[found < scores.size]
            with np.errstate(over="ignore", invalid="ignore"):
                changed = scores[found] - (self.presence_penalty + self.frequency_penalty * counts)
            scores[found] = _limited(changed, scores[found])
        return scores

    @property
    def reads_tokens(self) -> bool:
        """Whether the choice depends on the tokens that the sequence has."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def changes_scores(self) -> bool:
        """Whether `scores` changes any logit."""
        return self.reads_tokens or bool(self._bias)

    @property
    def _bias(self) -> tuple[tuple[int, float], ...]:
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    def _candidates(self, scores: Array) -> tuple[Array, Array]:
        """The tokens that may be drawn, the likeliest first, and their probabilities."""
        largest = scores.max()
        if largest == np.inf:
            return np.array([scores.argmax()]), np.ones(1)
        # Sorting all tokens would take longer than everything else, so those that a filter drops anyway are left out.
        total = None
        if 0 < self.top_k < scores.size:
            found = np.flatnonzero(scores >= np.partition(scores, -self.top_k)[-self.top_k])
        elif self.top_p < 1 or self.min_p > 0:
            weights = self._weights(scores, largest)
            total = weights.sum()
            # All tokens that are rarer than a share of the rest do not add up to the rest.
            least = max(self.min_p, (1 - self.top_p) * total / scores.size * 0.5)
            found = np.flatnonzero(weights >= least)
        else:
            found = np.arange(scores.size)
        # Stable, so that the first of equal tokens is the likelier one.
        order = found[np.argsort(-scores[found], kind="stable")][: self.top_k or None]
        order = order[scores[order] > -np.inf]  # the last one is chosen where the shares add up to less than 1
        shares = self._weights(scores[order], largest)
        shares /= shares.sum() if total is None else total
        kept = len(order)
        if self.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
        if self.min_p > 0:
            kept = min(kept, int(np.count_nonzero(shares >= self.min_p * shares[0])))
        if kept < len(order) or total is not None:
            order, shares = order[:kept], shares[:kept] / shares[:kept].sum()
        return order, shares

    def _weights(self, scores: Array, largest: float) -> Array:
        """The probabilities of tokens, relative to that of the largest score."""
        with np.errstate(over="ignore", invalid="ignore"):  # far below the likeliest one: exp(-inf), a share of 0
            return np.exp((scores - largest) / self.temperature)

    def _penalized(self, scores: Array) -> Array:
        """Scores after the penalty. One that would overflow stays finite: its token is unlikely, not impossible."""
        with np.errstate(over="ignore"):
            changed = np.where(scores > 0, scores / self.repetition_penalty, scores * self.repetition_penalty)
        return _limited(changed, scores)


def _limited(changed: Array, scores: Array) -> Array:
    """Changed scores, in which one that would overflow stays finite: its token is unlikely, not impossible."""
    return np.where(np.isfinite(scores), np.clip(changed, -_LARGEST, _LARGEST), scores)


def _pairs(given: object) -> tuple[tuple[int, float], ...]:
    """The pairs of a logit bias. Raises `InputError`."""
    try:
        pairs = [(token, bias) for token, bias in (given.items() if isinstance(given, Mapping) else given)]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InputError(
            f"Sampling: logit_bias is {_shown(given)}; expected numbers by token, such as {{15: -1.5}}"
        ) from None
    found: dict[int, float] = {}
    for token, bias in pairs:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token <= _LARGEST_TOKEN:
            raise InputError(f"Sampling: logit_bias has token {_shown(token)}; expected an integer of 0 or more")
        number = _number(bias)
        if math.isnan(number) or number == math.inf:
            raise InputError(
                f"Sampling: logit_bias of token {token} is {_shown(bias)}; expected a number, or minus infinity"
            )
        if int(token) in found:
            raise InputError(f"Sampling: logit_bias has token {token} twice; expected each token once")
        found[int(token)] = number
    return tuple(found.items())


def _number(value: object) -> float:
    """A value as a float; NaN for what is not a real number, such as True, and infinity for an integer beyond the range
    of floats.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    """A value for a message; Python writes no number of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.80}" if value is None or isinstance(value, (Real, str)) else f"a {type(value).__name__}"
