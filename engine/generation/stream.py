"""`Stream`: the tokens of a sequence that a `Scheduler` computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InputError
from engine.generation.adapter import Adapter
from engine.generation.constraint import Constraint
from engine.generation.log_probabilities import TokenLogProbabilities, log_probabilities
from engine.generation.proposer import Proposer
from engine.generation.sampling import Sampling
from engine.generation.speculation import Choice, Proposals, chosen_tokens
from engine.threads import Signal

Array = NDArray[Any]


class Stream:
    """The tokens of a submitted sequence, each as soon as it is computed: an iterator, also for asyncio.

    Iterating raises the error that ended the sequence, if one did: `Cancelled` after `cancel`, `StateError` if it
    reached the bound of the variables. It may be read by one thread, and cancelled by any.
    """

    def __init__(
        self,
        prompt: list[int],
        sampling: Sampling,
        max_tokens: int,
        stop_tokens: frozenset[int],
        adapter: Adapter | None = None,
        constraint: Constraint | None = None,
        top: int | None = None,
    ) -> None:
        self.adapter, self.constraint = adapter, constraint
        self.prompt, self.sampling, self.max_tokens, self.stop_tokens = prompt, sampling, max_tokens, stop_tokens
        self.tokens: list[int] = []
        """The tokens so far."""
        self.log_probabilities: list[TokenLogProbabilities] = []
        """Those of each token, if they were asked for."""
        self._top = top
        self.random = np.random.default_rng(None if sampling.seed is None else [sampling.seed, 0])
        self.is_cancelled = False
        self.is_stopped = False
        """Whether it has ended by a stop token or its constraint, and not only because it has `max_tokens`."""
        self.computed = 0
        """How many tokens the variables have."""
        self.reused = 0
        """How many tokens of the prompt were not computed, since an earlier sequence began with them."""
        self.proposed = self.accepted = 0
        """How many tokens were proposed, and how many of these were chosen."""
        self.proposer: Proposer | None = None
        """What proposes tokens, if the scheduler has a draft."""
        self._sequence = np.array(prompt, np.int64)
        self._read = 0
        """How many tokens the iteration has given."""
        self._error: EngineError | None = None
        self._has_ended = False
        self._lock = threading.Lock()
        self._changed = Signal(self._lock)

    def cancel(self) -> None:
        """End the sequence before its next token."""
        self.is_cancelled = True

    def result(self) -> list[int]:
        """Wait for the end; returns all tokens. Raises the error that ended the sequence."""
        for _ in self:
            pass
        return self.tokens

    def __iter__(self) -> Iterator[int]:
        while (token := self._next()) is not None:
            yield token

    async def __aiter__(self) -> AsyncIterator[int]:
        while (token := await asyncio.to_thread(self._next)) is not None:
            yield token

    @property
    def sequence(self) -> Array:
        """The tokens of the prompt, and those so far."""
        return self._sequence[: len(self.prompt) + len(self.tokens)]

    @property
    def has_last_token(self) -> bool:
        """Whether no token follows."""
        return self.is_stopped or len(self.tokens) == self.max_tokens

    def choice(self) -> Choice:
        """How the next tokens are chosen, without changing what the stream has."""
        seen, generated = self._seen()
        return Choice(self.sampling, seen, generated, self.random)

    def add(self, logits: Array, proposed: tuple[Proposals, Choice] | None = None) -> int:
        """Choose the tokens that follow; returns how many. Called by the scheduler.

        `logits` are those of the last token and of the `proposed` ones, of which there are fewer than tokens are left;
        the choice has drawn them, if they were drawn. Nothing is proposed for a sequence with a constraint. Raises what
        `Sampling.choose` and the constraint raise.
        """
        if proposed is None:
            logits = logits[-1:]
            seen, generated = self._seen()
            chosen = [self.sampling.choose(self._allowed(logits[0]), seen, self.random, generated)]
        else:
            found = chosen_tokens(proposed[0], logits, proposed[1], self.stop_tokens)
            chosen, self.random = [token for token, _ in found], found[-1][1]
        last = chosen[-1]
        is_stopped = (self.constraint is not None and self.constraint.add(last)) or last in self.stop_tokens
        likely = []
        if self._top is not None:
            likely = [log_probabilities(row, token, self._top) for row, token in zip(logits, chosen, strict=False)]
        length = len(self.sequence)
        if length + len(chosen) > len(self._sequence):
            self._sequence = np.concatenate([self._sequence, np.zeros(length + len(chosen), np.int64)])
        self._sequence[length : length + len(chosen)] = chosen
        with self._lock:
            self.log_probabilities += likely
            self.tokens += chosen
            self.is_stopped = is_stopped
            self._changed.notify_all()
        return len(chosen)

    def _allowed(self, logits: Array) -> Array:
        """The logits under the constraint. Raises `InputError` if it gives those of other tokens."""
        if self.constraint is None:
            return logits
        allowed = self.constraint.allowed(logits)
        if not isinstance(allowed, np.ndarray) or allowed.shape != logits.shape:
            given = f"shape {allowed.shape}" if isinstance(allowed, np.ndarray) else f"{allowed!r:.80}"
            raise InputError(f"the constraint gives {given}; expected the logits of {len(logits)} tokens")
        return allowed

    def _seen(self) -> tuple[Array, Array]:
        """The tokens of the sequence, and those that were generated, as far as the choice depends on them."""
        seen = self.sequence if self.sampling.reads_tokens else self._sequence[:0]
        return seen, seen[len(self.prompt) :]

    def end(self, error: EngineError | None) -> None:
        """Let the reader's iteration end. Called by the scheduler."""
        self.proposer = None
        with self._lock:
            self._error, self._has_ended = error, True
            self._changed.notify_all()

    def after_fork(self, error: EngineError) -> None:
        """Replace the lock, which another thread may have held, and end the reading."""
        self._lock = threading.Lock()
        self._changed = Signal(self._lock)
        self.end(error)

    def _next(self) -> int | None:
        self._changed.wait_for(lambda: self._read < len(self.tokens) or self._has_ended)
        if self._read < len(self.tokens):
            self._read += 1
            return self.tokens[self._read - 1]
        if self._error is not None:
            raise self._error
        return None
