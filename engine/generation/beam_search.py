"""`BeamSearch`: the likeliest sequences, instead of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.generation.sampling import Sampling
from engine.startup import dataclass

Array = NDArray[Any]

_MAX_BEAMS: Final = 1 << 16
_MAX_PENALTY: Final = 16
_MAX_TOKENS: Final = 1 << 60
"""To the power of `_MAX_PENALTY`, it is still a number."""


class _Beams(Protocol):
    """What a search uses of a `Generator`."""

    sampling: Sampling
    stop_tokens: frozenset[int]

    @property
    def tokens(self) -> list[list[int]]: ...

    @property
    def forbidden_tokens(self) -> list[int]: ...

    def fork(self) -> Self: ...

    def logits(self) -> Array: ...

    def append(self, tokens: Sequence[Sequence[int]], /) -> None: ...

    def reorder(self, indices: Sequence[int], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence that a beam search has found.

    Attributes:
        tokens: those behind the prompt, with the stop token, if it ended with one.
        score: the sum of their log probabilities, divided by their number to the power of `length_penalty`.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """A search for the sequences with the largest scores, with the meaning of these options in transformers.

    Each step continues the `beams` likeliest sequences by every token, and keeps the likeliest of all. A sequence has
    ended if it is among these and its last token is a stop token, or after `max_tokens`.

    Attributes:
        beams: the number of sequences that are continued (`num_beams`).
        length_penalty: scores are divided by the number of tokens to this power, -16 to 16: above 0, longer sequences
            gain.
        early_stopping: when the search ends before `max_tokens`. True: as soon as `beams` sequences have ended. False:
            when the likeliest open one, at its present length, does not reach the worst of `beams` that have ended.
            "never": when it could not reach it at any length.

    Raises `InputError` for values that are out of range.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if isinstance(self.beams, bool) or not isinstance(self.beams, int) or not 1 <= self.beams <= _MAX_BEAMS:
            raise InputError(f"BeamSearch: beams is {self.beams!r:.80}; expected a number from 1 to {_MAX_BEAMS}")
        penalty = self.length_penalty
        if (
            isinstance(penalty, bool)
            or not isinstance(penalty, (int, float))
            or not -_MAX_PENALTY <= penalty <= _MAX_PENALTY
        ):
            raise InputError(
                f"BeamSearch: length_penalty is {penalty!r:.80}; expected a number from {-_MAX_PENALTY} to "
                f"{_MAX_PENALTY}"
            )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InputError(
                f'BeamSearch: early_stopping is {self.early_stopping!r:.80}; expected True, False or "never"'
            )

    def search(self, generator: _Beams, max_tokens: int = 256) -> list[list[Hypothesis]]:
        """The best `beams` continuations of each sequence of a generator, by falling scores.

        The generator stays as it is; the search runs on a fork of it, in which each sequence is computed `beams` times
        after the prompt. Its penalties and `logit_bias` change the log probabilities, as in transformers.

        Raises `InputError` if there are no new tokens to compute, if the generator draws tokens, or if it has fewer
        tokens than `beams` and stop tokens together, and the errors of the request.
        """
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens!r:.80}; expected 1 or more")
        if generator.sampling.temperature != 0:
            raise InputError(
                f"a beam search draws no tokens, and the generator's temperature is {generator.sampling.temperature}; "
                "expected 0"
            )
        run = generator.fork()
        prompts = run.tokens
        logits = run.logits()
        if self.beams + len(run.stop_tokens) > logits.shape[1]:
            raise InputError(
                f"BeamSearch: beams is {self.beams}; the model has {logits.shape[1]} tokens, {len(run.stop_tokens)} of "
                "which may be stop tokens; expected fewer beams"
            )
        searches = [_Search(self, run.stop_tokens, prompt, max_tokens) for prompt in prompts]
        places = list(range(len(searches)))
        """The search of each group of rows of the run."""
        width = 1
        while True:
            kept: list[int] = []
            for group, place in enumerate(places):
                search = searches[place]
                begin = group * width
                search.step(self._scores(run, search, logits[begin : begin + width]))
                if not search.has_ended:
                    kept += [begin + row for row in search.rows]
            places = [place for place in places if not searches[place].has_ended]
            if not places:
                return [search.found for search in searches]
            width = self.beams
            if kept != list(range(len(run.tokens))):
                run.reorder(kept)
            run.append([[tokens[-1]] for place in places for tokens in searches[place].open])
            logits = run.logits()

    @staticmethod
    def _scores(run: _Beams, search: _Search, logits: Array) -> Array:
        """The log probabilities of all next tokens of the open sequences of a search."""
        scores = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
        if not scores.size or (scores.max(axis=1) == -np.inf).any():
            raise InputError("no token can be chosen: every logit of a beam is NaN or minus infinity")
        if (scores == np.inf).any():
            raise InputError("a logit is infinite, so that the sequences of a beam search cannot be compared")
        scores -= scores.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # exp(-inf) is 0
            scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        scores[:, run.forbidden_tokens] = -np.inf
        sampling = run.sampling
        if not sampling.changes_scores:
            return scores
        rows = [
            sampling.scores(row, np.array([*search.prompt, *tokens], np.int64), np.array(tokens, np.int64))
            for row, tokens in zip(scores, search.open, strict=True)
        ]
        return np.stack(rows)


class _Search:
    """The open and the ended sequences of one prompt."""

    def __init__(self, options: BeamSearch, stop_tokens: frozenset[int], prompt: list[int], max_tokens: int) -> None:
        self._options, self._stop_tokens = options, stop_tokens
        self._max_tokens = min(max_tokens, _MAX_TOKENS)
        self.prompt = prompt
        self.open: list[list[int]] = [[]]
        """The tokens of the sequences that are continued."""
        self.rows: list[int] = []
        """Which sequence of the last step each continues."""
        self.found: list[Hypothesis] = []
        """The best that have ended, at most as many as beams."""
        self.has_ended = False
        self._sums = np.zeros(1)
        self._length = 0

    def step(self, scores: Array) -> None:
        """Continue the open sequences by a token, whose log probabilities [sequences, vocabulary] are given."""
        options, beams = self._options, self._options.beams
        self._length += 1
        sums = (self._sums[:, None] + scores).ravel()
        best = _largest(sums, max(2, 1 + len(self._stop_tokens)) * beams)
        rows, tokens = np.divmod(best, scores.shape[1])
        made = [[*self.open[row], int(token)] for row, token in zip(rows, tokens, strict=True)]
        is_last = self._length == self._max_tokens
        ends = [is_last or each[-1] in self._stop_tokens for each in made]
        penalty = float(self._length) ** options.length_penalty
        ended = [
            Hypothesis(tokens, float(sums[place] / penalty))
            for tokens, place, end in list(zip(made, best, ends, strict=True))[:beams]
            if end and sums[place] > -np.inf
        ]
        self.found = sorted([*self.found, *ended], key=lambda each: -each.score)[:beams]
        open_ones = [index for index, end in enumerate(ends) if not end and sums[best[index]] > -np.inf][:beams]
        if is_last or not open_ones:
            self.has_ended = True
            return
        self._sums = np.full(beams, -np.inf)  # the likeliest tokens may be forbidden: fewer beams are open then
        self._sums[: len(open_ones)] = sums[best[open_ones]]
        open_ones += [open_ones[0]] * (beams - len(open_ones))
        self.open, self.rows = [made[index] for index in open_ones], [int(rows[index]) for index in open_ones]
        self.has_ended = not self._may_improve()

    def _may_improve(self) -> bool:
        """Whether open sequences may be better than those that have ended."""
        options = self._options
        if len(self.found) < options.beams:
            return True
        if options.early_stopping is True:
            return False
        is_never = options.early_stopping == "never" and options.length_penalty > 0
        length = self._max_tokens if is_never else self._length
        return bool(self._sums[0] / float(length) ** options.length_penalty > self.found[-1].score)


def _largest(values: Array, count: int) -> Array:
    """The places of the largest values, in falling order, the first of equal ones first."""
    if count < values.size:
        found = np.flatnonzero(values >= np.partition(values, -count)[-count])
    else:
        found = np.arange(values.size)
    order: Array = found[np.argsort(-values[found], kind="stable")][:count]
    return order


def best_tokens(found: Sequence[Sequence[Hypothesis]], count: int) -> list[list[int]]:
    """The tokens of the best `count` hypotheses of each sequence, one after another."""
    return [hypothesis.tokens for each in found for hypothesis in each[:count]]
