"""`Stream`: the tokens of a sequence that a `Scheduler` computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError
from engine.generation.adapter import Adapter
from engine.generation.constraint import Constraint
from engine.generation.log_probabilities import TokenLogProbabilities, log_probabilities
from engine.generation.sampling import Sampling
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
        self.is_complete = False
        """Whether it has ended by a stop token or its constraint, and not only because it has `max_tokens`."""
        self.computed = 0
        """How many tokens the variables have."""
        self.reused = 0
        """How many tokens of the prompt were not computed, since an earlier sequence began with them."""
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

    def add(self, logits: Array) -> bool:
        """Choose the next token; returns whether it is the last one. Called by the scheduler."""
        seen = np.array([*self.prompt, *self.tokens], np.int64)
        allowed = logits if self.constraint is None else self.constraint.allowed(logits)
        token = self.sampling.choose(allowed, seen, self.random, seen[len(self.prompt) :])
        is_complete = (self.constraint is not None and self.constraint.add(token)) or token in self.stop_tokens
        found = None if self._top is None else log_probabilities(logits, token, self._top)
        with self._lock:
            if found is not None:
                self.log_probabilities.append(found)
            self.tokens.append(token)
            self.is_complete = is_complete
            self._changed.notify_all()
        is_last = is_complete or len(self.tokens) == self.max_tokens
        if is_last:
            self.end(None)
        return is_last

    def end(self, error: EngineError | None) -> None:
        """Let the reader's iteration end. Called by the scheduler."""
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
