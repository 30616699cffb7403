"""`Scheduler`: many sequences of one network, which join and leave a batch between two tokens."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import Cancelled, DeviceError, EngineError, InputError, StateError
from engine.generation.generator import (
    IDS,
    LOGITS,
    MASK,
    POSITIONS,
    checked_names,
    checked_rows,
    largest_token,
    vocabulary_of,
)
from engine.generation.sampling import Sampling
from engine.plugin_api import ExecutableNetwork
from engine.runtime.lifecycle import Participant, lifecycle
from engine.startup import dataclass
from engine.threads import Signal, start_thread

Array = NDArray[Any]


class Stream:
    """The tokens of a submitted sequence, each as soon as it is computed: an iterator, also for asyncio.

    Iterating raises the error that ended the sequence, if one did: `Cancelled` after `cancel`, `StateError` if it
    reached the bound of the variables. It may be read by one thread, and cancelled by any.
    """

    def __init__(self, prompt: list[int], sampling: Sampling, max_tokens: int, stop_tokens: frozenset[int]) -> None:
        self.prompt, self.sampling, self.max_tokens, self.stop_tokens = prompt, sampling, max_tokens, stop_tokens
        self.tokens: list[int] = []
        """The tokens so far."""
        self.random = np.random.default_rng(None if sampling.seed is None else [sampling.seed, 0])
        self.is_cancelled = False
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
        token = self.sampling.choose(logits, seen, self.random, seen[len(self.prompt) :])
        with self._lock:
            self.tokens.append(token)
            self._changed.notify_all()
        is_last = token in self.stop_tokens or len(self.tokens) == self.max_tokens
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


@dataclass(slots=True)
class _Slots:
    """The sequences of the batch, by row.

    All rows append at the same column, so that a sequence has the last columns of its row, and others are masked.
    """

    streams: list[Stream | None]
    mask: Array
    """[rows, columns]: which columns of the variables belong to the row's sequence."""
    lengths: list[int] = field(default_factory=list)

    @property
    def active(self) -> list[int]:
        """The rows that have a sequence."""
        return [row for row, stream in enumerate(self.streams) if stream is not None]

    @property
    def first_column(self) -> int:
        """The first column that a sequence has."""
        return min((int(self.mask[row].argmax()) for row in self.active), default=self.mask.shape[1])


class Scheduler(Participant):
    """Generates tokens for many sequences at a time, in one thread.

    Each step computes one token for all sequences of the batch, which reads the weights once for all of them. A
    submitted prompt is computed by itself, in the order of submission, as soon as there is a free row; its keys and
    values then join the batch's. So every sequence of the batch gets a token in each step, and those that wait are
    served in turn. The tokens of a sequence do not depend on the others, up to rounding; one that fails, such as by a
    token that the model cannot read, ends alone.

    The network is a language model as for `Generator`, with the inputs `attention_mask` and `position_ids`.
    Thread-safe.

    Args:
        network: the compiled model.
        slots: how many sequences are computed together.
        names: as for `Generator`.

    Raises `InputError` if the network has other inputs, or variables that do not grow, have no dimension of sequences,
    or are written at positions that the model computes.
    """

    def __init__(self, network: ExecutableNetwork, slots: int = 8, *, names: dict[str, str] | None = None) -> None:
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise InputError(f"slots is {slots!r}; expected 1 or more")
        self._names = checked_names(network.signature, names or {})
        for role in (MASK, POSITIONS):
            if role not in self._names:
                raise InputError(f"the model has no input `{role}`, which sequences of different lengths need")
        for variable in network.variables:
            if variable.axis is None or variable.batch_axis is None:
                raise InputError(f"variable `{variable.name}` does not grow, or has no dimension of sequences")
            if variable.is_placed:
                raise InputError(
                    f"the model computes the positions at which it writes to variable `{variable.name}`, as "
                    "GroupQueryAttention does, so sequences cannot join a batch; use a Generator for each"
                )
        self._network, self._count = network, slots
        self._vocabulary = vocabulary_of(network.signature, self._names[LOGITS])
        self._largest = largest_token(network.signature, self._names[IDS])
        self._batch, self._alone = network.create_infer_request(), network.create_infer_request()
        self._slots = _Slots([None] * slots, np.zeros((slots, 0), bool), [0] * slots)
        self._waiting: deque[Stream] = deque()
        self._joining: Stream | None = None
        self._lock = threading.Lock()
        self._changed = Signal(self._lock)
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._has_ended = False
        """Whether the thread has ended all sequences."""
        self._failure: DeviceError | None = None
        lifecycle.track(self)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 256,
        *,
        sampling: Sampling | None = None,
        stop_tokens: Collection[int] = (),
    ) -> Stream:
        """Add a sequence; returns the stream of its next tokens, up to a stop token, at most `max_tokens`.

        Raises `InputError` for tokens that the model does not have, or after `close`, and `failure` if there is one.
        """
        (row,) = checked_rows([list(prompt)], self._vocabulary, self._largest)
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens!r}; expected 1 or more")
        sampling = sampling or Sampling()
        sampling.check(self._vocabulary)
        stream = Stream(row, sampling, max_tokens, frozenset(stop_tokens))
        with self._lock:
            if self._failure is not None:
                raise DeviceError(str(self._failure)) from self._failure
            if self._is_closed:
                raise InputError("the scheduler is closed")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="engine-scheduler", daemon=True)
                start_thread(thread)
                self._thread = thread
            self._waiting.append(stream)
            self._changed.notify_all()
        return stream

    @property
    def failure(self) -> DeviceError | None:
        """Why it ended by itself and accepts no more sequences, so that another scheduler is needed. None while it
        works.

        The failure of a sequence, or of a step, only ends the sequences that it concerns. If the batch cannot be
        emptied after that, the scheduler fails.
        """
        return self._failure

    def close(self) -> None:
        """End all sequences with `Cancelled`, and the thread. Further calls have no effect."""
        self._begin_exit()
        self._changed.wait_for(lambda: self._thread is None or self._has_ended)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- fork and exit --------------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """The thread, and the sequences that it computes, stay in the parent: the child has an error for them."""
        error = StateError("the sequence is computed in the parent process of this one; submit it again")
        for stream in self._unfinished():
            stream.after_fork(error)
        self._lock, self._thread = threading.Lock(), None
        self._changed = Signal(self._lock)
        self._waiting.clear()
        self._joining = None
        self._slots = _Slots([None] * self._count, np.zeros((self._count, 0), bool), [0] * self._count)

    def _begin_exit(self) -> None:
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._has_place():
            return
        error: EngineError = Cancelled("the scheduler was closed")
        try:
            self._serve()
        except Exception as e:  # otherwise, the streams' readers would wait forever
            error = self._failure = DeviceError(self._error_text(e, "the scheduler failed"))
            error.__cause__ = e
        with self._lock:
            self._is_closed = True
            left = self._unfinished()
        for stream in left:
            stream.end(error)
        with self._lock:
            self._has_ended = True
            self._changed.notify_all()

    def _has_place(self) -> bool:
        """Whether the current thread is the scheduler's.

        If Ctrl-C interrupts the start of a thread, the thread may run all the same, or never.
        """
        thread = threading.current_thread()
        with self._lock:
            if self._thread is None:
                self._thread = thread
            return self._thread is thread

    def _unfinished(self) -> list[Stream]:
        """The sequences that wait, join the batch, or are in it."""
        held = [*self._waiting, self._joining, *self._slots.streams]
        return list({id(stream): stream for stream in held if stream is not None}.values())

    def _serve(self) -> None:
        while True:
            self._changed.wait_for(lambda: self._waiting or self._slots.active or self._is_closed)
            if self._is_closed:
                return
            try:
                self._drop_cancelled()
                self._admit_waiting()
                if self._slots.active:
                    self._step()
            except Exception as e:  # such as no memory for new arrays: the next sequences begin with an empty batch
                self._drop_all(self._typed(e))

    def _drop_cancelled(self) -> None:
        for row in self._slots.active:
            stream = self._slots.streams[row]
            if stream is not None and stream.is_cancelled:
                self._leave(row, Cancelled("the sequence was cancelled"))

    def _leave(self, row: int, error: EngineError | None = None) -> None:
        stream, self._slots.streams[row] = self._slots.streams[row], None
        if stream is not None and error is not None:
            stream.end(error)

    def _admit_waiting(self) -> None:
        while None in self._slots.streams:
            with self._lock:
                if not self._waiting:
                    return
                stream = self._joining = self._waiting.popleft()
            if stream.is_cancelled:
                self._joining = None
                stream.end(Cancelled("the sequence was cancelled"))
                continue
            try:
                self._admit(stream)
            except Exception as e:  # even an exception that is not an error of the SDK ends only this sequence
                stream.end(self._typed(e))
            self._joining = None

    def _admit(self, stream: Stream) -> None:
        """Compute a prompt, and let its keys and values join the batch."""
        self._alone.reset_state()
        length = len(stream.prompt)
        ids, positions = np.array([stream.prompt]), np.arange(length)[None]
        result = self._alone.infer(self._inputs(ids, np.ones((1, length), bool), positions))
        if stream.add(result[self._names[LOGITS]][0, -1]):
            return
        row = self._slots.streams.index(None)
        self._arrange(row)
        self._slots.streams[row], self._slots.lengths[row] = stream, length

    def _arrange(self, row: int | None = None) -> None:
        """Drop the columns that no sequence has, and let the single request's values become the last ones of `row`."""
        slots, length = self._slots, 0 if row is None else self._alone.length
        if row is not None and 0 < length <= slots.mask.shape[1] and slots.active:
            # The sequence takes the last columns of its row, and the others stay where they are.
            self._batch.take_sequence(row, self._alone)
            slots.mask[row] = np.arange(slots.mask.shape[1]) >= slots.mask.shape[1] - length
            return
        first = slots.first_column
        kept = slots.mask.shape[1] - first
        columns = max(kept, length)
        mask = np.zeros((self._count, columns), bool)
        mask[:, columns - kept :] = slots.mask[:, first:]
        if row is not None:
            mask[row] = np.arange(columns) >= columns - length
        alone, batch = self._alone.query_state(), self._batch.query_state()
        values_made = {}
        for variable in self._network.variables:
            old = batch[variable.name].get() if kept else None
            one = alone[variable.name].get() if row is not None else None
            source = one if old is None else old
            assert source is not None
            shape = list(source.shape)
            shape[variable.batch_axis or 0], shape[variable.axis or 0] = self._count, columns
            made = np.zeros(shape, source.dtype)
            view = np.moveaxis(made, (variable.batch_axis or 0, variable.axis or 0), (0, 1))
            for values, rows, count in ((old, slice(None), kept), (one, row, length)):
                if values is not None and count:
                    turned = np.moveaxis(values, (variable.batch_axis or 0, variable.axis or 0), (0, 1))
                    view[rows, columns - count :] = turned[:, -count:] if rows == slice(None) else turned[0]
            values_made[variable.name] = made
        try:
            for name, made in values_made.items():
                batch[name].set(made)
        except Exception as e:  # some have the new length, some the old one
            self._drop_all(self._typed(e))
            raise
        slots.mask = mask

    def _step(self) -> None:
        """One token for each sequence of the batch."""
        slots = self._slots
        if slots.first_column > slots.mask.shape[1] // 2:
            self._arrange()
        ids, positions = np.zeros((self._count, 1), np.int64), np.zeros((self._count, 1), np.int64)
        for row in slots.active:
            stream = slots.streams[row]
            assert stream is not None
            ids[row], positions[row] = stream.tokens[-1], slots.lengths[row]
        # A row without a sequence sees its own token only, since a row that sees none may be NaN.
        mask = np.concatenate([slots.mask, np.ones((self._count, 1), bool)], axis=1)
        try:
            logits = self._batch.infer(self._inputs(ids, mask, positions))[self._names[LOGITS]]
        except Exception as e:
            self._fail(self._typed(e))
            return
        slots.mask = mask
        for row in slots.active:
            slots.lengths[row] += 1
            stream = slots.streams[row]
            assert stream is not None
            try:
                is_last = stream.add(logits[row, -1])
            except Exception as e:
                self._leave(row, self._typed(e))
                continue
            if is_last:
                self._leave(row)

    def _fail(self, error: EngineError) -> None:
        """Remove the sequences that caused a step to fail; the step has left the variables unchanged.

        They are the longest ones if the bound is reached, otherwise those whose step also fails alone, or all if none
        does.
        """
        slots = self._slots
        if isinstance(error, StateError) and slots.first_column:
            self._arrange()
            return
        found: dict[int, EngineError] = {}
        if isinstance(error, StateError):
            found = {row: error for row in slots.active if slots.mask[row].argmax() == 0}
        elif len(slots.active) > 1:
            found = self._failing_alone()
        for row, why in (found or dict.fromkeys(slots.active, error)).items():
            self._leave(row, why)

    def _failing_alone(self) -> dict[int, EngineError]:
        """The rows of the batch whose next token cannot be computed without the others either, and why."""
        slots, found = self._slots, dict[int, EngineError]()
        state, alone = self._batch.query_state(), self._alone.query_state()
        values = {variable.name: state[variable.name].get() for variable in self._network.variables}
        for row in slots.active:
            stream, first = slots.streams[row], int(slots.mask[row].argmax())
            assert stream is not None
            length = slots.mask.shape[1] - first
            try:
                for variable in self._network.variables:
                    one = np.take(values[variable.name], [row], axis=variable.batch_axis or 0)
                    alone[variable.name].set(
                        np.moveaxis(np.moveaxis(one, variable.axis or 0, 0)[first:], 0, variable.axis or 0)
                    )
                ids, positions = np.array([stream.tokens[-1:]]), np.array([[slots.lengths[row]]])
                self._alone.infer(self._inputs(ids, np.ones((1, length + 1), bool), positions))
            except Exception as e:
                found[row] = self._typed(e)
        return found

    def _drop_all(self, error: EngineError) -> None:
        """End the sequences of the batch, and begin with an empty one."""
        for row in self._slots.active:
            self._leave(row, error)
        self._batch.reset_state()
        self._slots = _Slots([None] * self._count, np.zeros((self._count, 0), bool), [0] * self._count)

    def _typed(self, error: BaseException) -> EngineError:
        """An error for the reader of a stream; one that is not of the SDK, such as a plugin's, is its cause."""
        if isinstance(error, EngineError):
            return error
        made = DeviceError(self._error_text(error, "computing a token failed"))
        made.__cause__ = error
        return made

    def _error_text(self, error: BaseException, what: str) -> str:
        return f"{self._network.signature.network}: {what}: {type(error).__name__}: {error}"

    def _inputs(self, ids: Array, mask: Array, positions: Array) -> dict[str, Array]:
        signature, given = self._network.signature, {}
        for role, value in ((IDS, ids), (MASK, mask), (POSITIONS, positions)):
            wanted = signature.inputs[signature.find_input(self._names[role])].element_type.numpy
            given[self._names[role]] = np.ascontiguousarray(value, wanted)
        return given
