"""Sequences of requests to a model with variables: Triton's sequence extension. Each has a state of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from engine.errors import Busy, DeadlineExceeded, InputError, StateError
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.runtime import InferResult
from engine.runtime.submission import InferFuture, Submissions
from engine_serve.ended_sequences import EndedSequences, Identity
from engine_serve.event_loop import when_done
from engine_serve.model_config import SequenceLimits
from engine_serve.request_queue import RequestQueue, Times

AnswerT = TypeVar("AnswerT")

_MAX_ID_LENGTH: Final = 128
"""The maximum number of characters of an id, as in Triton."""


@dataclass(frozen=True, slots=True)
class Step:
    """The parameters of a request about its sequence."""

    identity: Identity
    is_first: bool | None
    """None if the request does not say so."""
    is_last: bool


def step_of(parameters: Mapping[str, Any]) -> Step:
    """The sequence of a request. Raises `InputError` without one, and for values that are not valid.

    An id is a whole number above 0 or a text; 7 and "7" are different ids.
    """
    identity = parameters.get("sequence_id", 0)
    if type(identity) not in (int, str) or (type(identity) is int and not 0 <= identity < 1 << 64):
        raise InputError(f"`sequence_id` is {identity!r:.40}; expected a whole number from 1 to 2**64 - 1, or a text")
    if isinstance(identity, str) and len(identity) > _MAX_ID_LENGTH:
        raise InputError(f"`sequence_id` has {len(identity)} characters; at most {_MAX_ID_LENGTH} are allowed")
    if not identity:
        raise InputError(
            "the model has variables, which are kept for each sequence: the request needs `sequence_id`, and the first "
            "and the last one of a sequence `sequence_start` and `sequence_end`"
        )
    for name in ("sequence_start", "sequence_end"):
        if type(parameters.get(name, False)) is not bool:
            raise InputError(f"`{name}` is {parameters[name]!r:.40}; expected true or false")
    return Step(identity, parameters.get("sequence_start"), bool(parameters.get("sequence_end")))


@dataclass(slots=True, eq=False)
class _Sequence:
    """A sequence: its request, which has the variables, and the turn of its requests."""

    request: AsyncInferRequest
    submissions: Submissions
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    """Requests that run or wait for their turn."""
    steps: int = 0
    """How many requests have succeeded."""
    has_ended: bool = False
    expiry: asyncio.TimerHandle | None = None
    nbytes: int = 0
    """The bytes of the variables after the last step."""


class Sequences:
    """The sequences of a network. Used by one event loop.

    Requests of one sequence run one after the other, in the order of their arrival; `queue` orders requests of
    different sequences. A request that fails, is late or is cancelled leaves the sequence as it was: a failed first
    request begins no sequence, and a failed last one does not end it.
    """

    def __init__(self, name: str, network: ExecutableNetwork, queue: RequestQueue, limits: SequenceLimits) -> None:
        self._name, self._network, self._queue, self._limits = name, network, queue, limits
        self._running: dict[Identity, _Sequence] = {}
        self.ended = EndedSequences()
        """The ended sequences of this network and of those that it has replaced."""
        self._waiting = 0

    @property
    def count(self) -> int:
        """The number of sequences that have begun and not ended."""
        return len(self._running)

    @property
    def nbytes(self) -> int:
        """The bytes of the variables of all sequences."""
        return sum(sequence.nbytes for sequence in self._running.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for earlier ones of their sequences."""
        return self._waiting

    def succeed(self, other: Sequences | None, ended: EndedSequences, what: str) -> None:
        """Record the ids of another network's sequences: those that have ended, and those that run, with the reason
        `what`.
        """
        self.ended.take(ended, self._running)
        for identity in other._running if other is not None else ():
            if identity not in self._running:
                self.ended.note(identity, what)

    def close(self, why: str = "the model was unloaded") -> None:
        """End all sequences; requests that run end."""
        for identity, sequence in list(self._running.items()):
            if sequence.expiry is not None:
                sequence.expiry.cancel()
            self._end(identity, sequence, why)

    async def infer(
        self,
        step: Step,
        inputs: Mapping[str, Any],
        deadline: float | None,
        times: Times,
        size: int,
        answered: Callable[[InferResult], AnswerT],
    ) -> AnswerT:
        """Run a request of a sequence; returns `answered` of its result.

        Raises `StateError` if the sequence does not exist, or was begun already; `Busy` if there are too many
        sequences, too many bytes in them, or too many requests that wait; the errors of `RequestQueue.infer`, and of
        `answered`, after which the sequence has ended: its state has changed in a way that the client does not know.
        """
        sequence = self._sequence(step)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
            sequence.expiry = None
        sequence.users += 1
        run: list[InferFuture] = []

        def submit(given: object) -> InferFuture:
            run.append(sequence.submissions.submit(given, None))
            return run[0]

        try:
            left = await self._turn(sequence, deadline)
        except BaseException:
            sequence.users -= 1
            self._rest(step.identity, sequence)
            raise
        is_answered = False
        try:
            if sequence.has_ended:
                raise StateError(self._unknown(step.identity))
            answer = answered(await self._queue.infer(inputs, left, times, size, submit))
            is_answered = True
            return answer
        finally:
            when_done(run[0] if run else None, lambda: self._done(step, sequence, run, is_answered))

    def _done(self, step: Step, sequence: _Sequence, run: list[InferFuture], is_answered: bool) -> None:
        """Pass the turn on, after the state has changed or stayed as it was."""
        has_changed = bool(run) and not run[0].cancelled() and run[0].exception() is None
        sequence.users -= 1
        if has_changed:
            sequence.steps += 1
            sequence.nbytes = sum(state.nbytes for state in sequence.request.query_state().values())
        if not sequence.has_ended and has_changed and not is_answered:
            self._end(step.identity, sequence, "a request had no answer, after its state had changed")
        elif not sequence.has_ended and is_answered and step.is_last:
            self._end(step.identity, sequence, "a request with `sequence_end` ended it")
        elif not sequence.has_ended and not sequence.steps:
            self._forget(step.identity, sequence)
        sequence.turn.release()
        self._rest(step.identity, sequence)

    def _sequence(self, step: Step) -> _Sequence:
        found = self._running.get(step.identity)
        if found is not None:
            if step.is_first:
                raise StateError(
                    f"sequence {step.identity!r} of {self._name} has begun already, and two cannot have one id; end it "
                    "by `sequence_end`, or take another id"
                )
            self._require_memory(step)
            return found
        must_start = step.is_first is False or self._limits.requires_start or step.identity in self.ended
        if not step.is_first and must_start:
            raise StateError(self._unknown(step.identity))
        if len(self._running) >= self._limits.size:
            raise Busy(
                f"{len(self._running)} sequences of {self._name} have begun; try again later, or raise "
                "`sequences.size` in its configuration"
            )
        self._require_memory(step)
        request = self._network.create_infer_request()
        made = Submissions(
            lambda: request, AsyncInferRequest.clear_tensors, 1, f"a request of sequence {step.identity!r:.140}"
        )
        self._running[step.identity] = sequence = _Sequence(request, made)
        return sequence

    def _require_memory(self, step: Step) -> None:
        """Raise `Busy` if the sequences have as many bytes as they may; the last request of one is let through."""
        most, held = self._limits.state_bytes, self.nbytes
        if held >= most and not step.is_last:
            raise Busy(
                f"the variables of {len(self._running)} sequences of {self._name} have {held} bytes; at most {most} "
                "are allowed: end sequences, or raise `sequences.state_mib` in its configuration"
            )

    def _unknown(self, identity: Identity) -> str:
        what = self.ended.reason(identity) or "has not begun"
        return f"sequence {identity!r} of {self._name} {what}; begin it with `sequence_start`: true"

    async def _turn(self, sequence: _Sequence, deadline: float | None) -> float | None:
        """Wait for the earlier requests of the sequence; returns what is left of the deadline."""
        if sequence.users == 1:  # this request
            await sequence.turn.acquire()
            return deadline
        if self._waiting >= max(self._queue.size, 1):
            raise Busy(f"{self._waiting} requests to {self._name} wait for earlier ones of their sequences; try later")
        begin = time.perf_counter()
        self._waiting += 1
        try:
            async with asyncio.timeout(deadline):
                await sequence.turn.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the deadline of the request to {self._name}, {deadline:.3g} s, passed while it waited for earlier "
                "ones of its sequence"
            ) from None
        finally:
            self._waiting -= 1
        return None if deadline is None else deadline - (time.perf_counter() - begin)

    def _rest(self, identity: Identity, sequence: _Sequence) -> None:
        """Schedule the end of a sequence after the idle time, unless a request uses it."""
        if sequence.users or sequence.has_ended:
            return
        why = f"it had no request for {self._limits.idle_ms:g} ms"
        sequence.expiry = asyncio.get_running_loop().call_later(
            self._limits.idle_ms / 1e3, self._end, identity, sequence, why
        )

    def _end(self, identity: Identity, sequence: _Sequence, why: str) -> None:
        self._forget(identity, sequence)
        self.ended.note(identity, f"has ended: {why}")

    def _forget(self, identity: Identity, sequence: _Sequence) -> None:
        sequence.has_ended = True
        if self._running.get(identity) is sequence:
            del self._running[identity]
