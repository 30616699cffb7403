"""`Sampling`: how the next token is chosen from a model's logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.startup import dataclass

Array = NDArray[Any]

_LARGEST: Final = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. By default, it is the one with the largest logit, the first of several.

    With a temperature above 0, it is drawn from the probabilities softmax(logits / temperature), after everything else
    has been applied in the order of the attributes.

    Attributes:
        repetition_penalty: divides the positive logits of tokens that the sequence already has, and multiplies negative
            ones (Keskar et al. 2019, CTRL, section 4.1); 1 changes nothing.
        temperature: 0 takes the largest logit; below 1 favours likely tokens, above 1 unlikely ones.
        top_k: only this many of the likeliest tokens are candidates; 0 is all.
        top_p: only the likeliest tokens whose probabilities together reach this are candidates (Holtzman et al. 2020,
            The Curious Case of Neural Text Degeneration, section 3.1); 1 is all.
        seed: the seed of the drawn numbers; None draws another one each time.

    Raises `InputError` for values that are out of range.
    """

    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        limits: dict[str, tuple[Callable[[float], bool], str]] = {
            "repetition_penalty": (lambda value: value > 0, "a number above 0"),
            "temperature": (lambda value: value >= 0, "a number of 0 or more"),
            "top_p": (lambda value: 0 < value <= 1, "a number above 0, and 1 at most"),
        }
        for name, (is_allowed, allowed) in limits.items():
            value = _number(getattr(self, name))
            if not math.isfinite(value) or not is_allowed(value):
                raise InputError(f"Sampling: {name} is {_shown(getattr(self, name))}; expected {allowed}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"Sampling: top_k is {_shown(self.top_k)}; expected a number of tokens, or 0 for all")
        if self.seed is not None and (not isinstance(self.seed, int) or self.seed < 0):
            raise InputError(f"Sampling: seed is {_shown(self.seed)}; expected an integer of 0 or more, or None")

    def choose(self, logits: Array, seen: Array, random: np.random.Generator) -> int:
        """The next token of a sequence.

        Args:
            logits: of all tokens, a vector of real numbers; NaN and minus infinity are never chosen.
            seen: the tokens that the sequence has.
            random: draws the number, where one is needed.

        Raises `InputError` if no logit is a number.
        """
        scores = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
        if not scores.size or scores.max() == -np.inf:
            raise InputError("no token can be chosen: every logit is NaN or minus infinity")
        if self.repetition_penalty != 1:
            found = np.unique(seen)
            found = found[found < scores.size]  # a model may read more tokens than it can choose
            scores[found] = self._penalized(scores[found])
        if self.temperature == 0:
            return int(scores.argmax())
        # Stable, so that the first of equal tokens is the likelier one.
        order = np.argsort(-scores, kind="stable")[: self.top_k or None]
        order = order[scores[order] > -np.inf]  # the last one is chosen where the shares add up to less than 1
        if scores[order[0]] == np.inf:
            return int(order[0])
        with np.errstate(over="ignore", invalid="ignore"):  # far below the likeliest one: exp(-inf), a share of 0
            shares = np.exp((scores[order] - scores[order[0]]) / self.temperature)
        shares /= shares.sum()
        if self.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            order, shares = order[:kept], shares[:kept] / shares[:kept].sum()
        return int(order[min(int(np.searchsorted(np.cumsum(shares), random.random(), side="right")), len(order) - 1)])

    def _penalized(self, scores: Array) -> Array:
        """Scores after the penalty. One that would overflow stays finite: its token is unlikely, not impossible."""
        with np.errstate(over="ignore"):
            changed = np.where(scores > 0, scores / self.repetition_penalty, scores * self.repetition_penalty)
        return np.where(np.isfinite(scores), np.clip(changed, -_LARGEST, _LARGEST), scores)


def _number(value: object) -> float:
    """A value as a float; NaN for what is not a real number, and infinity for an integer beyond the range of floats."""
    if not isinstance(value, Real):
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
