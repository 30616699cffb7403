"""`PromptLookup`, `Draft`: several next tokens are proposed, and the network computes them in one run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InputError, StateError
from engine.generation.sampling import Sampling
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.startup import dataclass

Array = NDArray[Any]
_Result = TypeVar("_Result")

Turn = Generator[tuple[AsyncInferRequest, dict[str, Array]], Mapping[str, Array], _Result]
"""A computation that gives a request with its inputs for each run that it needs, and receives the outputs."""

_PRIOR_TRIALS: Final = 2.0
_DECAY: Final = 0.95
"""Of the weight of a proposed token with each later one: about the last twenty count."""
_LEAST_ADDED: Final = 1e-9
"""Fewer expected tokens make no number of proposals better, so that the search for it ends."""
_MIN_GAIN: Final = 1.05
"""Expected gains below this do not make up for what they ignore, such as the work of the host."""
_FIRST_PAUSE: Final = 4
_LONGEST_PAUSE: Final = 16
_NEVER: Final = 1 << 62
_NEW_TEXT: Final = 16
"""So many tokens that are appended at once may be of another kind, such as a question of a chat."""
_MAX_COST: Final = 1e9
_NEAR: Final = 32
"""Sequences of a draft and a network that differ do so in their last few tokens, as a rule."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Proposes the tokens that followed earlier, after the same last tokens (Saxena 2023, Prompt Lookup Decoding).

    It costs almost nothing, and it helps where a text repeats its prompt, as summaries, corrections and code do.

    Attributes:
        tokens: the most tokens that are proposed for a run.
        longest: at most this many last tokens are compared; of all places, the last one at which most are equal is
            continued.
        shortest: at least this many must be equal.
        cost: the additional time of a run for each proposed token, relative to a run without proposals. Tokens are
            proposed as long as the share of the accepted ones makes up for it.

    Raises `InputError` for values that are out of range.
    """

    tokens: int = 8
    longest: int = 4
    shortest: int = 2
    cost: float = 0.3

    def __post_init__(self) -> None:
        _check_counts("PromptLookup", tokens=self.tokens, shortest=self.shortest)
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or self.longest < self.shortest:
            raise InputError(
                f"PromptLookup: longest is {self.longest!r:.80}; expected a number of tokens, "
                f"{self.shortest} (shortest) or more"
            )
        _check_cost("PromptLookup", self.cost)

    def found(self, tokens: Array, count: int) -> list[int]:
        """At most `count` tokens that may follow; none if the last tokens did not occur before."""
        ends = np.flatnonzero(tokens[:-1] == tokens[-1])
        start = None
        for length in range(1, min(self.longest, len(tokens) - 1) + 1):
            ends = ends[ends >= length - 1]
            ends = ends[tokens[ends - (length - 1)] == tokens[-length]]
            if not ends.size:
                break
            if length >= self.shortest:
                start = int(ends[-1]) + 1
        if start is None:
            return []
        found: list[int] = []
        for index in range(start, start + count):  # behind the last token, a repetition goes on
            found.append(int(tokens[index]) if index < len(tokens) else found[index - len(tokens)])
        return found


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposes the tokens of a smaller language model with the same tokens (Leviathan et al. 2023, Fast Inference from
    Transformers via Speculative Decoding; Chen et al. 2023, Accelerating Large Language Model Decoding with Speculative
    Sampling).

    Attributes:
        network: the compiled model, as for `Generator`. It may compute the logits of the last token only.
        tokens: the most tokens that are proposed for a run.
        names: the model's names for its inputs and for `logits`, as for `Generator`.
        cost: the additional time for each proposed token, of the draft and of the network, relative to a run of the
            network without proposals. Tokens are proposed as long as the share of the accepted ones makes up for it.
            If it does not, the draft computes nothing more until 16 tokens or more are appended at once.

    Raises `InputError` for values that are out of range.
    """

    network: ExecutableNetwork
    tokens: int = 8
    names: Mapping[str, str] = field(default_factory=dict)
    cost: float = 0.45

    def __post_init__(self) -> None:
        _check_counts("Draft", tokens=self.tokens)
        _check_cost("Draft", self.cost)
        if not isinstance(self.network, ExecutableNetwork):
            raise InputError(f"Draft: network is a {type(self.network).__name__}; expected a compiled model")


def checked_proposer(draft: object) -> PromptLookup | Draft:
    """What proposes tokens. Raises `InputError`."""
    options = Draft(draft) if isinstance(draft, ExecutableNetwork) else draft
    if not isinstance(options, (Draft, PromptLookup)):
        raise InputError(f"draft is a {type(draft).__name__}; expected a compiled model, a Draft or a PromptLookup")
    return options


@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """What proposals have saved; the counts of a `Generator` and of those that it was forked from.

    Attributes:
        tokens: the chosen tokens.
        runs: the runs of the network that chose them: without proposals, as many as tokens.
        proposed: the proposed tokens.
        accepted: the proposed tokens that were chosen.
    """

    tokens: int = 0
    runs: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Proposals:
    """Tokens that may follow, and the probabilities of all tokens from which each was drawn, if they were drawn."""

    tokens: list[int]
    shares: list[Array] | None = None


class OtherVocabularyError(InputError):
    """The draft has another number of tokens."""


class DraftGenerator(Protocol):
    """What is needed of the draft's `Generator`."""

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each sequence."""

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens."""

    def reset(self) -> None:
        """Forget all tokens."""

    def fork(self) -> Any:
        """One that goes on from the same tokens."""

    def computed_logits(self) -> Turn[Array]:
        """The logits [1, vocabulary] of what follows the appended tokens."""


class Speculation:
    """Proposes tokens for one sequence, as many as the share of accepted ones makes worth their cost.

    What it proposes depends only on the tokens and the proposals before, not on times, so that the same seed gives the
    same tokens.
    """

    def __init__(
        self,
        options: PromptLookup | Draft,
        draft: DraftGenerator | None,
        draft_room: int | None,
        cost_factor: int = 1,
    ) -> None:
        self._cost_factor = cost_factor
        self._options, self._draft, self._draft_room = options, draft, draft_room
        self._given_room = draft_room
        self.statistics = SpeculationStatistics()
        self._pace = self._new_pace()

    def fork(self) -> Speculation:
        """One that goes on from the same tokens."""
        draft = None if self._draft is None else self._draft.fork()
        made = Speculation(self._options, draft, self._draft_room, self._cost_factor)
        made._given_room = self._given_room
        made.statistics, made._pace = self.statistics, self._pace.copy()
        return made

    def begin(self, count: int) -> None:
        """Note that `count` tokens were appended: after a text of another kind, a draft that has ended begins again."""
        if count >= _NEW_TEXT and self._pace.left > _LONGEST_PAUSE:
            self._pace = self._new_pace()

    def reset(self) -> None:
        """Forget the tokens, and the share of accepted ones; the counts go on."""
        self._pace, self._draft_room = self._new_pace(), self._given_room
        if self._draft is not None:
            self._draft.reset()

    def refuse(self, length: int) -> None:
        """Propose no more for sequences of `length` tokens or more, which the draft cannot compute."""
        self._draft_room = length - 1

    def count(self, length: int, most: int) -> int:
        """How many tokens to propose after `length` tokens, at most `most`."""
        most = min(most, self._options.tokens)
        if self._draft_room is not None:
            most = min(most, self._draft_room - length + 1)
        return self._pace.count(most) if most > 0 else 0

    def proposed(self, tokens: list[int], ids: Array, count: int, vocabulary: int, choice: Choice) -> Turn[Proposals]:
        """At most `count` tokens that may follow `tokens`, which are `ids` as an array.

        Raises `OtherVocabularyError` if the draft's logits are not of `vocabulary` tokens, and what its runs raise.
        """
        if isinstance(self._options, PromptLookup):
            return Proposals(self._options.found(ids, count))
        assert self._draft is not None
        return (yield from drafted(self._draft, tokens, count, vocabulary, choice))

    def _new_pace(self) -> _Pace:
        return _Pace(self._cost_factor * self._options.cost, self._draft is not None, Acceptance.of(self._options))

    def record(self, proposed: int, accepted: int, tokens: int) -> None:
        """Count a run that chose `tokens` tokens, of which `accepted` were among the proposed ones."""
        known = self.statistics
        self.statistics = SpeculationStatistics(
            known.tokens + tokens, known.runs + 1, known.proposed + proposed, known.accepted + accepted
        )
        if proposed:
            self._pace.record(proposed, accepted)


class Choice:
    """How the next tokens of a sequence are chosen: what the sequence has so far, and what draws its numbers."""

    def __init__(self, sampling: Sampling, seen: Array, generated: Array, random: np.random.Generator) -> None:
        self.sampling = sampling
        self._seen, self._generated = seen, generated
        self._given = random
        self._random = random if sampling.temperature == 0 else None

    @property
    def random(self) -> np.random.Generator:
        """What draws the numbers: a copy of what was given, so that nothing has been drawn if an error follows."""
        if self._random is None:
            self._random = copy_of(self._given)
        return self._random

    def chosen(self, logits: Array) -> int:
        """The next token."""
        return self.sampling.choose(logits, self._seen, self.random, self._generated)

    def probabilities(self, logits: Array) -> Array:
        """The probability of each token."""
        return self.sampling.probabilities(logits, self._seen, self._generated)

    def add(self, token: int) -> None:
        """Append a chosen token."""
        if self.sampling.reads_tokens:
            self._seen, self._generated = np.append(self._seen, token), np.append(self._generated, token)

    def remove(self, count: int) -> None:
        """Remove the last tokens."""
        if self.sampling.reads_tokens and count:
            self._seen, self._generated = self._seen[:-count], self._generated[:-count]

    def checked(self, logits: Array, token: int, drawn_from: Array) -> int:
        """A token of the distribution of `chosen`: `token`, which was drawn from other probabilities, as likely as
        possible (Leviathan et al. 2023, section 2.3; Chen et al. 2023, algorithm 2).
        """
        wanted = self.probabilities(logits)
        if self.random.random() * drawn_from[token] < wanted[token]:
            return token
        rest = np.maximum(wanted - drawn_from, 0)
        # Rounding may leave no rest where both distributions are the same.
        return _drawn(rest if rest.any() else wanted, self.random)


def drafted(draft: DraftGenerator, tokens: list[int], count: int, vocabulary: int, choice: Choice) -> Turn[Proposals]:
    """The `count` tokens that a draft expects after `tokens`.

    Raises `OtherVocabularyError` if its logits are not of `vocabulary` tokens, and what its runs raise.
    """
    _follow(draft, tokens)
    found: list[int] = []
    shares: list[Array] = []
    while True:
        (logits,) = yield from draft.computed_logits()
        if logits.size != vocabulary:
            raise OtherVocabularyError(
                f"the draft's logits are of {logits.size} tokens, and the network's of {vocabulary}; expected a "
                "draft with the same tokens"
            )
        if choice.sampling.temperature == 0:
            found.append(choice.chosen(logits))
        else:
            shares.append(choice.probabilities(logits))
            found.append(_drawn(shares[-1], choice.random))
        if len(found) == count:
            choice.remove(count - 1)
            return Proposals(found, shares or None)
        choice.add(found[-1])
        draft.append(found[-1:])


def chosen_tokens(
    proposals: Proposals, logits: Array, choice: Choice, stop_tokens: frozenset[int]
) -> list[tuple[int, np.random.Generator]]:
    """The tokens that follow, each with what draws the numbers after it.

    `logits` are those before each proposed token, and behind the last one. All tokens but the last one are proposed
    ones; none follows a stop token. Raises what `Sampling.choose` raises for the first token.
    """
    chosen: list[tuple[int, np.random.Generator]] = []
    for index, row in enumerate(logits):
        proposed = proposals.tokens[index] if index < len(proposals.tokens) else None
        try:
            if proposed is None or proposals.shares is None:
                token = choice.chosen(row)
            else:
                token = choice.checked(row, proposed, proposals.shares[index])
        except EngineError:
            if not chosen:
                raise
            break  # the step after these tokens raises it
        if token != proposed or token in stop_tokens:
            chosen.append((token, choice.random))
            break
        chosen.append((token, copy_of(choice.random) if choice.sampling.temperature else choice.random))
        choice.add(token)
    return chosen


def copy_of(random: np.random.Generator) -> np.random.Generator:
    """A generator that draws the same numbers."""
    made = np.random.default_rng()
    made.bit_generator.state = random.bit_generator.state
    return made


def completed(turn: Turn[_Result]) -> _Result:
    """Run a computation in this thread; returns its result."""
    try:
        request, inputs = next(turn)
        while True:
            try:
                outputs = request.infer(inputs)
            except EngineError as e:
                request, inputs = turn.throw(e)
            else:
                request, inputs = turn.send(outputs)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        turn.close()


async def completed_async(turn: Turn[_Result]) -> _Result:
    """Run a computation without blocking the event loop; returns its result."""
    try:
        request, inputs = next(turn)
        while True:
            try:
                request.start_async(inputs)
                outputs = await request
            except EngineError as e:
                request, inputs = turn.throw(e)
            else:
                request, inputs = turn.send(outputs)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        turn.close()


@dataclass(slots=True)
class Acceptance:
    """The share of proposed tokens that are accepted, of which the latest count most.

    Attributes:
        prior: the share of which it is sure as if of two tokens, before any was proposed.
    """

    prior: float
    _accepted: float = 0.0
    _trials: float = 0.0

    @classmethod
    def of(cls, options: PromptLookup | Draft) -> Acceptance:
        """What is expected of a proposer."""
        made = cls(0.7 if isinstance(options, Draft) else 0.5)
        made.forget()
        return made

    @property
    def share(self) -> float:
        """The expected share."""
        return self._accepted / self._trials

    def forget(self) -> None:
        """Begin anew."""
        self._accepted, self._trials = self.prior * _PRIOR_TRIALS, _PRIOR_TRIALS

    def record(self, proposed: int, accepted: int) -> None:
        """Count the tokens of a run; those behind the first refused one say nothing."""
        trials = min(proposed, accepted + 1)
        weight = _DECAY**trials
        self._accepted, self._trials = self._accepted * weight + accepted, self._trials * weight + trials


@dataclass(slots=True)
class _Pace:
    """How many tokens to propose, by the share of accepted ones (Leviathan et al. 2023, section 3.3 and 3.5).

    Where they do not make up for their cost, one token is proposed now and then, after pauses that become longer; a
    draft ends after three of these.
    """

    cost: float
    has_draft: bool
    acceptance: Acceptance
    pause: int = _FIRST_PAUSE
    left: int = 0
    """The tokens until the next proposal."""
    is_paused: bool = False

    def copy(self) -> _Pace:
        """One that goes on from the same counts."""
        return replace(self, acceptance=replace(self.acceptance))

    def count(self, most: int) -> int:
        """How many tokens to propose for the next run, at most `most`."""
        if self.left:
            self.left -= 1
            return 0
        return 1 if self.is_paused else self._best(most) or 1

    def record(self, proposed: int, accepted: int) -> None:
        """Count the tokens of a run."""
        if self.is_paused:
            if not accepted:
                self.left = self.pause = min(2 * self.pause, _LONGEST_PAUSE)
                if self.has_draft and self.pause == _LONGEST_PAUSE:
                    # A draft must compute the tokens of a pause after it, so that any further try would cost more.
                    self.left = _NEVER
                return
            self.is_paused, self.pause = False, max(_FIRST_PAUSE, self.pause // 4)
            self.acceptance.forget()
        self.acceptance.record(proposed, accepted)
        if not self._best(proposed):
            self.is_paused, self.left = True, self.pause

    def _best(self, most: int) -> int:
        """The number with the greatest expected gain; 0 if none is worth it."""
        return best_count([(self.acceptance.share, most)], self.cost)


def best_count(rows: Sequence[tuple[float, int]], cost: float) -> int:
    """How many tokens to propose for sequences that a run computes together, for the greatest expected gain; 0 if no
    number is worth it.

    Args:
        rows: the expected share of accepted tokens of each sequence, and the most tokens that it can propose.
        cost: the additional time of a run for a token of all sequences, relative to a run without proposals.
    """
    best, gain, tokens = 0, _MIN_GAIN, float(len(rows))
    for count in range(1, max((most for _, most in rows), default=0) + 1):
        added = sum(share**count for share, most in rows if count <= most)
        if added < _LEAST_ADDED:  # further ones add still less
            break
        tokens += added
        if (found := tokens / len(rows) / (1 + cost * count)) > gain:
            best, gain = count, found
    return best


def _follow(draft: DraftGenerator, tokens: list[int]) -> None:
    """Let the draft have these tokens, of which those that it has already are not computed again."""
    known = draft.tokens[0] if draft.tokens else []
    both = min(len(known), len(tokens) - 1)  # the last token is computed in any case: its logits are needed
    near = max(0, both - _NEAR)
    first = near if known[:near] == tokens[:near] else 0
    common = next((i for i in range(first, both) if known[i] != tokens[i]), both)
    try:
        draft.rewind(len(known) - common)
    except StateError:  # a state that does not keep its past values, and whose last checkpoint is later
        draft.reset()
        common = 0
    draft.append(tokens[common:])


def _drawn(weights: Array, random: np.random.Generator) -> int:
    """A token, drawn by weights that need not add up to 1."""
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
    return min(place, int(np.flatnonzero(weights)[-1]))


def _check_counts(what: str, **counts: object) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{what}: {name} is {value!r:.80}; expected a number of tokens, 1 or more")


def _check_cost(what: str, cost: object) -> None:
    if (
        isinstance(cost, bool)
        or not isinstance(cost, (int, float, np.integer, np.floating))
        or not 0 <= cost <= _MAX_COST
    ):
        raise InputError(f"{what}: cost is {cost!r:.80}; expected a number of 0 or more, {_MAX_COST:g} at most")
