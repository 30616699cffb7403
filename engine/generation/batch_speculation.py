"""`BatchSpeculation`: proposes next tokens for the sequences of a `Scheduler`, which one run of their batch checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from engine.errors import EngineError
from engine.generation.generator import Generator, draft_generator
from engine.generation.proposer import Proposer
from engine.generation.roles import (
    LOGITS,
    columns_of,
    is_replaced,
    most_logits,
    require_any_number,
    require_checking,
)
from engine.generation.sequence_groups import SequenceGroup
from engine.generation.speculation import (
    Acceptance,
    Choice,
    Draft,
    OtherVocabularyError,
    PromptLookup,
    Proposals,
    best_count,
    checked_proposer,
    completed,
    drafted,
)
from engine.generation.stream import Stream
from engine.plugin_api import ExecutableNetwork

_ROW_COST: Final = 0.3
"""The most that computing another row is taken to add to the time of a run of one row."""
_FIRST_PAUSE: Final = 4
_LONGEST_PAUSE: Final = 16
_LEAST_COST: Final = 1e-9
_DRAFT_TRIALS: Final = 3
"""A draft whose single proposals were refused so often is of no use for its sequence."""


Proposed = tuple[Proposals, Choice]
"""Proposed tokens, and the choice that has drawn them, by which they are checked."""


class BatchSpeculation:
    """Decides how many tokens are proposed for the sequences of a group, and proposes them.

    A run computes as many columns for each row of a group, so one number is chosen for all: the one with the greatest
    expected gain of all rows together. A proposed token of `rows` sequences costs more than one of a single sequence,
    relative to a run without: weights are read once in any case. Where no number is worth it, single tokens are
    proposed after pauses that become longer.

    Args:
        network: the network of the sequences.
        names: the names of its inputs and outputs, by role.
        vocabulary: the number of its tokens, if it states it.
        draft: a compiled model, a `Draft` or a `PromptLookup`.

    Raises `InputError` if proposals are not possible.
    """

    def __init__(
        self, network: ExecutableNetwork, names: dict[str, str], vocabulary: int | None, draft: object
    ) -> None:
        signature, self._options = network.signature, checked_proposer(draft)
        require_any_number(signature, names)
        require_checking(signature, names, self._options.tokens)
        self.is_replaced = any(is_replaced(each) for each in network.variables)
        """Whether refused tokens cannot be taken back: their run is undone, and accepted ones are computed again."""
        self._most_checked = most_logits(signature, names[LOGITS])
        self._room = columns_of(signature, None)
        self._draft: Generator | None = None
        if isinstance(self._options, Draft):
            self._draft, draft_room = draft_generator(self._options, signature, vocabulary)
            # The draft computes a token less than it proposes.
            self._draft_room = None if draft_room is None else draft_room + 1
        self.vocabulary = vocabulary
        """The number of logits, which the first run gives if the network does not state it."""
        self.proposed = self.accepted = 0
        """How many tokens were proposed and accepted."""

    @property
    def most_proposed(self) -> int:
        """The most tokens that are proposed for a run."""
        return self._options.tokens

    def proposer(self) -> Proposer:
        """One for a new sequence."""
        made = Proposer(Acceptance.of(self._options))
        if self._draft is not None:
            made.draft, made.room = self._draft.fork(), self._draft_room
        return made

    def missing(self, stream: Stream) -> int:
        """How many of the tokens of a prompt that are computed the draft of its sequence does not have yet."""
        draft = None if stream.proposer is None else stream.proposer.draft
        if draft is None:
            return 0
        known = len(draft.tokens[0]) if draft.tokens else 0
        return max(0, min(stream.computed, len(stream.prompt) - 1) - known)

    def follow(self, stream: Stream, count: int) -> None:
        """Let the draft compute the next `count` tokens of a prompt; if it cannot, it proposes none for it."""
        draft = None if stream.proposer is None else stream.proposer.draft
        assert draft is not None
        known = len(draft.tokens[0]) if draft.tokens else 0
        draft.append(stream.prompt[known : known + count])
        try:
            completed(draft.computed_logits())
        except EngineError:
            self.refuse([stream])

    def proposals(
        self, group: SequenceGroup, *, is_alone: bool
    ) -> tuple[dict[Stream, Proposed], dict[Stream, Exception]]:
        """The tokens proposed for sequences of a group; and the errors of sequences whose draft has another vocabulary,
        or is defective.

        A draft that cannot compute its tokens, such as for lack of memory, proposes no more for its sequence. States
        that are replaced cannot be rewound for each row, so that proposals for such models need a group that `is_alone`
        and has one sequence.
        """
        if self.is_replaced and not (is_alone and len(group.streams) == 1 and group.is_settled):
            return {}, {}
        allowed = {stream: self._allowed(group, stream) for _, stream in group.members}
        continued: dict[Stream, list[int]] = {}
        if isinstance(self._options, PromptLookup):
            continued = {stream: self._options.found(stream.sequence, most) for stream, most in allowed.items() if most}
            allowed = {stream: len(continued.get(stream, [])) for stream in allowed}
        count = self._count(group, allowed)
        found: dict[Stream, Proposed] = {}
        failed: dict[Stream, Exception] = {}
        for stream, most in allowed.items() if count else ():
            if not most:
                continue
            choice = stream.choice()
            try:
                found[stream] = self._proposed(stream, min(most, count), continued.get(stream), choice), choice
            except Exception as e:
                if isinstance(e, EngineError) and not isinstance(e, OtherVocabularyError):
                    self.refuse([stream])  # such as more positions than the draft has
                else:
                    failed[stream] = e
        return found, failed

    def refuse(self, streams: Iterable[Stream]) -> None:
        """Propose no more for sequences whose proposed tokens could not be computed, such as beyond a last position."""
        for stream in streams:
            if stream.proposer is not None:
                self._end(stream.proposer)

    def record(self, group: SequenceGroup, pairs: Mapping[Stream, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Take note of the tokens that were proposed, and of those that were chosen then, by sequence."""
        if not pairs:
            return
        is_trial, total = all(len(proposed) == 1 for proposed, _ in pairs.values()), 0
        for stream, (proposed, chosen) in pairs.items():
            accepted = sum(a == b for a, b in zip(proposed, chosen, strict=False))
            total += self._record(stream, len(proposed), accepted, is_trial)
        if total:
            group.pause, group.left = max(_FIRST_PAUSE, group.pause // 4), 0
        elif is_trial:
            group.pause = min(2 * max(group.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            group.left = int(group.pause * self._cost(len(group.streams)) / max(self._options.cost, _LEAST_COST))

    def _record(self, stream: Stream, proposed: int, accepted: int, is_trial: bool) -> int:
        proposer = stream.proposer
        assert proposer is not None
        self.proposed, self.accepted = self.proposed + proposed, self.accepted + accepted
        stream.proposed, stream.accepted = stream.proposed + proposed, stream.accepted + accepted
        if accepted and proposer.refused:
            proposer.acceptance.forget()
        proposer.acceptance.record(proposed, accepted)
        proposer.refused = 0 if accepted or not is_trial else proposer.refused + 1
        if proposer.draft is not None and proposer.refused == _DRAFT_TRIALS:
            self._end(proposer)
        return accepted

    @staticmethod
    def _end(proposer: Proposer) -> None:
        proposer.has_ended, proposer.draft = True, None

    def _allowed(self, group: SequenceGroup, stream: Stream) -> int:
        """The most tokens that may be proposed for a sequence; a constraint takes note of one token after another."""
        proposer, length = stream.proposer, len(stream.prompt) + len(stream.tokens)
        if proposer is None or proposer.has_ended or self.vocabulary is None or stream.constraint is not None:
            return 0
        limits = [self._options.tokens, stream.max_tokens - len(stream.tokens) - 1]
        limits += [self._most_checked - 1] if self._most_checked is not None else []
        limits += [self._room - group.columns - 1] if self._room is not None else []
        limits += [proposer.room - length] if proposer.room is not None else []
        return max(0, min(limits))

    def _count(self, group: SequenceGroup, allowed: dict[Stream, int]) -> int:
        """How many tokens to propose for a group, if its sequences can have at most `allowed` ones."""
        if not any(allowed.values()):
            return 0
        rows = [
            (0.0 if stream.proposer is None else stream.proposer.acceptance.share, most)
            for stream, most in allowed.items()
        ]
        best = best_count(rows, self._cost(len(group.streams)))
        if not best and group.left:
            group.left -= 1
            return 0
        return best or 1

    def _cost(self, rows: int) -> float:
        """The additional time of a run for a token of all rows, relative to a run without proposals."""
        cost = (2 if self.is_replaced else 1) * self._options.cost
        return cost * rows / (1 + min(cost, _ROW_COST) * (rows - 1))

    def _proposed(self, stream: Stream, count: int, continued: list[int] | None, choice: Choice) -> Proposals:
        if continued is not None:
            return Proposals(continued[:count])
        proposer = stream.proposer
        assert proposer is not None
        assert proposer.draft is not None
        assert self.vocabulary is not None
        return completed(drafted(proposer.draft, stream.sequence.tolist(), count, self.vocabulary, choice))
