"""`Scheduler`: many sequences of one network, which join and leave a batch between two tokens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import Cancelled, DeviceError, EngineError, InputError, OutOfMemoryError, StateError
from engine.generation.adapted import AdapterInputs
from engine.generation.adapter import Adapter
from engine.generation.batch_speculation import BatchSpeculation, Proposed
from engine.generation.constraint import Constraint
from engine.generation.prefix_cache import PrefixCache
from engine.generation.preparation import prepare_runs
from engine.generation.prompt_chunks import PromptChunks
from engine.generation.roles import (
    IDS,
    LOGITS,
    MASK,
    POSITIONS,
    checked_names,
    checked_rows,
    checked_sampling,
    checked_stop_tokens,
    input_for,
    is_replaced,
    largest_token,
    listed_tokens,
    vocabulary_of,
)
from engine.generation.sampling import Sampling
from engine.generation.scheduler_statistics import SchedulerStatistics
from engine.generation.sequence_groups import Division, RunCost, SequenceGroup, division_of
from engine.generation.speculation import Draft, PromptLookup
from engine.generation.stream import Stream
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.properties import REPEATABLE, SUPPORTED_CONFIG_KEYS
from engine.runtime.lifecycle import Participant, lifecycle
from engine.startup import dataclass
from engine.threads import Signal, start_thread

Array = NDArray[Any]

_DIVISION_STEPS: Final = 32
"""After how many tokens it is computed anew which sequences belong together, if none has joined or left."""
_UNKNOWN_WEIGHTS: Final = 1 << 62
"""The bytes of weights that are more than all else, so that sequences are in one group."""


@dataclass(slots=True, eq=False)
class _Prompt:
    """A sequence whose prompt is computed, by a request of its own."""

    stream: Stream
    request: AsyncInferRequest


class Scheduler(Participant):
    """Generates tokens for many sequences at a time, in one thread.

    Each step computes one token for all running sequences, which reads the weights once for all of them. A submitted
    prompt is computed by itself, in the order of submission, as soon as fewer than `slots` sequences run; while others
    run, in chunks between two of their tokens. Those that wait are served in turn. The tokens of a sequence do not
    depend on the others, up to rounding; one that fails, such as by a token that the model cannot read, ends alone.

    Each row of a batch takes as much memory as the longest, and as much time in attention. So sequences of very
    different lengths are computed in groups, each of which reads the weights once: in those that read the fewest bytes
    together. Groups are made anew, with rows for running sequences only, once that saves as much as it costs, so
    keys and values take at most about twice what the tokens of running sequences take, and the bytes of the weights
    for each doubling from the shortest length to the longest. They are read from `network.memory_statistics()`; if it
    does not state them, there is one group.

    The network is a language model as for `Generator`, with the inputs `attention_mask` and `position_ids`; only the
    first, if its positions follow from the mask, as those of models with GroupQueryAttention after
    `engine.passes.MaskedCaches`. Thread-safe.

    Args:
        network: the compiled model.
        slots: how many sequences are computed together.
        names: as for `Generator`.
        prompt_chunk: the most tokens of a prompt that are computed between two tokens of running sequences. By default,
            the number follows from measured times: a chunk takes up to one and a half times as long as a token.
        prefix_cache_bytes: the most bytes of keys and values of earlier prompts and sequences that are kept, so that a
            prompt that begins with the same tokens does not compute them again; 0 for none. They are found by the
            tokens, so a prompt takes less time if another client has sent one with the same beginning, which the other
            may not want it to know.
        is_batched: False computes each sequence by itself, one after another, which reads the weights for each, as
            does a network with the property REPEATABLE, since its keys begin at other places in a batch. Then
            the model needs neither `attention_mask` nor `position_ids`, and its variables may be of any kind but a
            fixed length.
        draft: what proposes tokens, as for `Generator`: several next tokens of each sequence are computed in one run,
            as many for all sequences of a group as the accepted ones are expected to make worth their cost. The
            likeliest tokens are the same as without, up to rounding. Drawn tokens have the same probabilities, and with
            `PromptLookup` they are the same ones for the same seed; with a `Draft`, they depend on how much is
            proposed, and so on the sequences beside. Each sequence has the draft's keys and values, too, without an
            adapter.

    A sequence also has its own row of variables that are replaced by each inference, such as the states of linear
    attention, if their size is fixed. Since they cannot be shortened, a kept prefix serves as a whole only.

    Raises `InputError` if the network has other inputs, or variables that are replaced and whose size varies, have no
    dimension of sequences, or are written at positions that the model computes; if the draft has another number of
    tokens, or proposals are not possible, as for `Generator`.
    """

    def __init__(
        self,
        network: ExecutableNetwork,
        slots: int = 8,
        *,
        names: Mapping[str, str] | None = None,
        prompt_chunk: int | None = None,
        prefix_cache_bytes: int = 0,
        is_batched: bool = True,
        draft: ExecutableNetwork | Draft | PromptLookup | None = None,
    ) -> None:
        for what, value in (("slots", slots), ("prompt_chunk", 1 if prompt_chunk is None else prompt_chunk)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{what} is {value!r}; expected 1 or more")
        if isinstance(prefix_cache_bytes, bool) or not isinstance(prefix_cache_bytes, int) or prefix_cache_bytes < 0:
            raise InputError(f"prefix_cache_bytes is {prefix_cache_bytes!r}; expected 0 or more")
        is_batched = is_batched and not _is_repeatable(network)
        self._names = checked_names(network.signature, {} if names is None else names)
        self._adapters = AdapterInputs(network.signature)
        if is_batched:
            _require_batches(network, self._names)
        for variable in network.variables:
            if variable.written_axis is not None:
                raise InputError(f"variable `{variable.name}` has a fixed length; use a Generator for each sequence")
            if prefix_cache_bytes and variable.batch_axis is None:
                raise InputError(
                    f"variable `{variable.name}` has no dimension of sequences, so prefixes cannot be kept"
                )
        self._network, self._count, self._is_batched = network, slots, is_batched
        self._vocabulary = vocabulary_of(network.signature, self._names[LOGITS])
        self._largest = largest_token(network.signature, self._names[IDS])
        self._speculation = None if draft is None else BatchSpeculation(network, self._names, self._vocabulary, draft)
        self._chunk, self._chunks = prompt_chunk, PromptChunks()
        self._prefix_cache_bytes = prefix_cache_bytes
        self._begin_empty()
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
        adapter: Adapter | None = None,
        constraint: Constraint | None = None,
        log_probabilities: int | None = None,
    ) -> Stream:
        """Add a sequence; returns the stream of its next tokens, up to a stop token, at most `max_tokens`.

        `adapter` is a low-rank adapter (`engine.generation.read_adapter`) for this sequence, of a model that
        `engine.passes.MakeAdaptable` prepared. Sequences are computed together as far as their adapters fit its `rank`.

        `constraint` restricts the tokens, such as to those that a grammar allows; it belongs to this sequence alone.
        With `log_probabilities`, the stream has those of each token and of so many of the likeliest ones; None: none.

        Raises `InputError` for tokens that the model does not have, or after `close`, `AdapterError` if the adapter
        does not fit the network, and `failure` if there is one.
        """
        (row,) = checked_rows([listed_tokens("prompt", prompt)], self._vocabulary, self._largest)
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens!r}; expected 1 or more")
        sampling = checked_sampling(sampling)
        sampling.check(self._vocabulary)
        if not isinstance(adapter, Adapter | None):
            raise InputError(f"adapter is {adapter!r:.80}; expected an Adapter (read_adapter) or None")
        self._adapters.check([adapter])
        if constraint is not None and not all(callable(getattr(constraint, name, None)) for name in ("allowed", "add")):
            raise InputError(f"constraint is {constraint!r:.80}; expected a Constraint or None")
        top = log_probabilities
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 0):
            raise InputError(f"log_probabilities is {top!r:.80}; expected a number of tokens, or None")
        stops = checked_stop_tokens(stop_tokens)
        stream = Stream(row, sampling, max_tokens, stops, adapter, constraint, top)
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

    def warm_up(self, tokens: int = 128) -> None:
        """Prepare prompts, chunks of them, and batches of tokens, with and without proposed ones, so that no sequence
        waits for it later.

        Without it, the first prompts, chunks and numbers of sequences take longer, on devices that make plans for them.
        Prompts and chunks of several times `tokens` are included. Computes nothing.
        """

        def runs(tokens: int) -> Iterator[tuple[dict[str, Array], int]]:
            shapes = [(1, 0, tokens), (1, tokens, 1)]
            if self._count > 1:
                shapes += [(1, tokens, tokens), *[(2, tokens, 1)] * self._is_batched]
            if self._speculation is not None:
                checked = 1 + self._speculation.most_proposed
                counts = sorted({1, *range(2, min(4, self._count)), self._count} if self._is_batched else {1})
                shapes += [(count, tokens, new) for count in counts for new in sorted({2, (2 + checked) // 2, checked})]
            for rows, past, new in shapes:
                ids, mask = np.zeros((rows, new), np.int64), np.ones((rows, past + new), bool)
                yield self._inputs(ids, mask, ids) | self._adapters.inputs([None] * rows), past

        prepare_runs(self._network, tokens, runs)

    @property
    def failure(self) -> DeviceError | None:
        """Why it ended by itself and accepts no more sequences, so that another scheduler is needed. None while it
        works.

        The failure of a sequence, or of a step, only ends the sequences that it concerns. If they cannot be removed
        after that, the scheduler fails.
        """
        return self._failure

    @property
    def statistics(self) -> SchedulerStatistics:
        """What it does now."""
        groups = self._groups
        positions = sum(len(group.streams) * group.columns for group in groups)
        others = sum(len(group.streams) for group in groups) * self._other_bytes
        waiting = len(self._waiting) + (self._prompt is not None)
        running = sum(len(group.members) for group in groups)
        return SchedulerStatistics(
            running,
            waiting,
            len(groups),
            positions * self._position_bytes + others,
            self._prompt_tokens,
            self._prefix_tokens,
            self._prefixes.nbytes,
            *((0, 0) if self._speculation is None else (self._speculation.proposed, self._speculation.accepted)),
        )

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
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._waiting: deque[Stream] = deque()
        self._prompt: _Prompt | None = None
        self._groups: list[SequenceGroup] = []
        self._prefixes = PrefixCache(self._network, self._prefix_cache_bytes)
        self._prompt_tokens = self._prefix_tokens = 0
        self._position_bytes = self._other_bytes = 0
        """The bytes of a sequence's keys and values at one position, and of its variables that do not grow."""
        self._division: Division | None = None
        """None after a sequence has joined or left."""
        self._saved = 0
        """What it could have saved since groups were last made."""
        self._steps = 0

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
        """The sequences that wait, whose prompt is computed, or that run."""
        held = [*self._waiting, *([self._prompt.stream] if self._prompt else []), *self._running]
        return list({id(stream): stream for stream in held}.values())

    @property
    def _running(self) -> list[Stream]:
        return [stream for group in self._groups for _, stream in group.members]

    def _serve(self) -> None:
        while True:
            self._changed.wait_for(lambda: self._waiting or self._prompt or self._groups or self._is_closed)
            if self._is_closed:
                return
            try:
                self._drop_cancelled()
                self._compute_prompts()
                if self._groups:
                    self._step()
            except Exception as e:  # such as no memory for new arrays: the next sequences begin with empty groups
                self._drop_all(self._typed(e))

    def _drop_cancelled(self) -> None:
        for stream in self._running:
            if stream.is_cancelled:
                self._finish(stream, Cancelled("the sequence was cancelled"))

    def _finish(self, stream: Stream, error: EngineError | None = None) -> None:
        """Remove a sequence whose step did not fail, and keep its keys and values for others that begin with it."""
        tokens = [*stream.prompt, *stream.tokens][: stream.computed]
        for group in self._groups:
            if stream in group.streams:
                self._keep(tokens, stream.adapter, group.request, group.streams.index(stream))
        self._leave(stream, error)

    def _keep(self, tokens: Sequence[int], adapter: Adapter | None, request: AsyncInferRequest, row: int) -> None:
        if self._prefix_cache_bytes:
            nbytes = len(tokens) * self._position_bytes + self._other_bytes
            self._prefixes.store(tokens, request, row, nbytes, adapter)

    def _leave(self, stream: Stream, error: EngineError | None = None) -> None:
        """Remove a sequence, which ends with an error if there is one."""
        for group in self._groups:
            group.streams = [None if each is stream else each for each in group.streams]
        self._groups = [group for group in self._groups if group.members]
        self._division = None
        if error is not None:
            stream.end(error)

    # -- prompts --------------------------------------------------------------------------------------------------

    def _compute_prompts(self) -> None:
        """Compute waiting prompts: whole if no sequence runs, otherwise as much as is allowed between two tokens, and
        at least one chunk.
        """
        left, is_first = self._chunks.allowed, True
        while self._begin_prompt():
            prompt = self._prompt
            assert prompt is not None
            size = len(prompt.stream.prompt) - prompt.stream.computed
            if self._groups:
                most = max(self._chunks.size(left), int(is_first)) if self._chunk is None else self._chunk * is_first
                size, is_first = min(size, most), False
                if most and (missing := self._missing(prompt)):
                    self._follow(prompt, min(missing, most))
                    return
            if not size:
                return
            begin = time.perf_counter()
            self._compute(prompt, size)
            seconds = time.perf_counter() - begin
            self._chunks.note_chunk(size, seconds)
            if self._prompt is not None:
                return
            left -= seconds

    def _missing(self, prompt: _Prompt) -> int:
        """How many tokens of a prompt the draft must compute before the network goes on."""
        return 0 if self._speculation is None else self._speculation.missing(prompt.stream)

    def _follow(self, prompt: _Prompt, count: int) -> None:
        """Let the draft compute tokens of a prompt; an error ends the sequence."""
        assert self._speculation is not None
        try:
            self._speculation.follow(prompt.stream, count)
        except Exception as e:
            self._prompt = None
            prompt.stream.end(self._typed(e))

    def _begin_prompt(self) -> bool:
        """Take the next prompt if none is computed, and there is one and place for it; returns whether there is one."""
        while self._prompt is None or self._prompt.stream.is_cancelled:
            if self._prompt is not None:
                stream, self._prompt = self._prompt.stream, None
                stream.end(Cancelled("the sequence was cancelled"))
            with self._lock:
                if not self._waiting or len(self._running) >= self._count:
                    return False
                stream = self._waiting[0]
            try:
                if self._speculation is not None:
                    stream.proposer = self._speculation.proposer()
                request, stream.computed = self._prefixes.take(stream.prompt, stream.adapter)
            except Exception as e:
                self._waiting.popleft()
                stream.end(self._typed(e))
                continue
            self._prompt = _Prompt(stream, request)
            self._waiting.popleft()  # after it is found elsewhere, if the process forks
            stream.reused = stream.computed
            self._prompt_tokens += len(stream.prompt)
            self._prefix_tokens += stream.reused
        return True

    def _compute(self, prompt: _Prompt, size: int) -> None:
        """Compute a chunk of a prompt; after the last one, the sequence runs."""
        try:
            if self._compute_chunk(prompt, size):
                self._prompt = None
        except Exception as e:  # even an exception that is not an error of the SDK ends only this sequence
            if isinstance(e, OutOfMemoryError) and self._prefixes.clear():
                return  # it is tried again
            self._prompt = None
            prompt.stream.end(self._typed(e))

    def _compute_chunk(self, prompt: _Prompt, size: int) -> bool:
        """Compute a chunk; returns whether it was the last one."""
        stream = prompt.stream
        start, end = stream.computed, stream.computed + size
        ids, positions = np.array([stream.prompt[start:end]]), np.arange(start, end)[None]
        mask = np.ones((1, end), bool)
        logits = self._infer(prompt.request, (ids, mask, positions), [stream.adapter])
        stream.computed = end
        if end < len(stream.prompt):
            return False
        self._measure(prompt)
        self._keep(stream.prompt, stream.adapter, prompt.request, 0)
        if self._speculation is not None:
            self._speculation.vocabulary = logits.shape[-1]
        stream.add(logits[0])
        if stream.has_last_token:
            stream.end(None)
        else:
            self._join(prompt)
        return True

    def _measure(self, prompt: _Prompt) -> None:
        """Take note of how many bytes sequences take."""
        states = prompt.request.query_state()
        sizes = [(variable.is_growing, states[variable.name].nbytes) for variable in self._network.variables]
        self._position_bytes = sum(size for is_growing, size in sizes if is_growing) // prompt.stream.computed
        self._other_bytes = sum(size for is_growing, size in sizes if not is_growing)

    def _join(self, prompt: _Prompt) -> None:
        """Let a sequence run: in a free row of a group in which it wastes little, or in a group of its own."""
        stream, request = prompt.stream, prompt.request
        length = stream.computed
        weights = self._cost.weights
        self._division = None
        for group in self._groups if self._is_batched else ():
            is_close = 0 <= (group.columns - length) * self._position_bytes <= weights
            if None in group.streams and is_close and self._adapters.fits([*group.adapters, stream.adapter]):
                row = group.streams.index(None)
                group.request.take_sequence(row, request)
                group.streams[row] = stream
                return
        self._groups.append(SequenceGroup(request, [stream], length))

    # -- tokens ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """One token for each running sequence."""
        begin = time.perf_counter()
        for group in list(self._groups):
            self._step_group(group)
        self._chunks.note_step(time.perf_counter() - begin)
        self._regroup()

    def _step_group(self, group: SequenceGroup) -> None:
        proposed = self._proposed(group)
        if not group.members:
            return
        logits = self._checked(group, proposed)
        if logits is None:
            proposed = {}
            try:
                logits = self._infer(group.request, group.inputs(), group.adapters)
            except Exception as e:
                self._fail(group, self._typed(e))
                return
        self._choose(group, logits, proposed)
        if proposed and self._speculation is not None and self._speculation.is_replaced:
            group.request.keep_checkpoints(0)

    def _proposed(self, group: SequenceGroup) -> dict[Stream, Proposed]:
        """The tokens that are proposed for sequences of a group; one whose draft fails ends."""
        if self._speculation is None:
            return {}
        others = len(self._running) + len(self._waiting) + (self._prompt is not None) - 1
        proposed, failed = self._speculation.proposals(group, is_alone=not self._is_batched or not others)
        for stream, error in failed.items():
            self._leave(stream, self._typed(error))
        return proposed

    def _checked(self, group: SequenceGroup, proposed: Mapping[Stream, Proposed]) -> Array | None:
        """The logits of a run with proposed tokens; None if there are none, or they cannot be computed.

        Such as more positions than the model has, or than there is memory for. The run without decides whether there is
        an error.
        """
        if self._speculation is None or not proposed:
            return None
        tokens = {stream: proposals.tokens for stream, (proposals, _) in proposed.items()}
        inputs = group.inputs(tokens)
        try:
            if self._speculation.is_replaced:
                group.request.keep_checkpoints(1)
            logits = self._infer(group.request, inputs, group.adapters)
        except Exception:
            self._speculation.refuse(proposed)
            return None
        return logits

    def _choose(self, group: SequenceGroup, logits: Array, proposed: Mapping[Stream, Proposed]) -> None:
        """Choose the next tokens of a group, and take back what was computed behind them."""
        counts = {stream: len(proposed[stream][0].tokens) if stream in proposed else 0 for _, stream in group.members}
        known = {stream: len(stream.sequence) - stream.computed for stream in counts}
        width = max(known[stream] + counts[stream] for stream in counts)
        kept, failed = dict[Stream, int](), dict[Stream, EngineError]()
        for row, stream in group.members:
            last = logits.shape[1] - width + known[stream] + counts[stream]
            try:
                of_tokens = self._logits_of(logits[row], last - counts[stream] - 1, last)
                kept[stream] = known[stream] - 1 + stream.add(of_tokens, proposed.get(stream))
            except Exception as e:
                failed[stream] = self._typed(e)
        for stream, error in failed.items():
            self._leave(stream, error)
        if not kept:
            return
        if self._speculation is not None and proposed:
            pairs = {
                stream: (given[0].tokens, stream.tokens[-(kept[stream] - known[stream] + 1) :])
                for stream, given in proposed.items()
                if stream in kept
            }
            self._speculation.record(group, pairs)
        longest = max(kept.values())
        back = [width - (longest if stream is None else kept[stream]) for stream in group.streams]
        try:
            if any(back) and self._speculation is not None and self._speculation.is_replaced:
                group.request.undo(1)  # the next step computes the accepted tokens again
                kept, longest = dict.fromkeys(kept, 0), 0
            elif any(back):
                group.request.rewind_each(back)
        except Exception as e:  # such as no memory for a copy: it is not known which positions are right
            for stream in kept:
                if stream.has_last_token:
                    stream.end(None)
                self._leave(stream, None if stream.has_last_token else self._typed(e))
            return
        group.columns += longest
        for stream, count in kept.items():
            stream.computed += count
        for stream in kept:
            if stream.has_last_token:
                stream.end(None)
                self._finish(stream)

    def _logits_of(self, logits: Array, begin: int, end: int) -> Array:
        """The logits of a part of the tokens of a row. Raises `InputError` if the model does not give them."""
        if begin < 0:
            raise InputError(
                f"{self._network.signature.network}: the model gives the logits of the last {len(logits)} tokens, and "
                f"those of {end - begin} are needed to check the proposed ones; leave out draft"
            )
        return logits[begin:end]

    def _fail(self, group: SequenceGroup, error: EngineError) -> None:
        """Remove the sequences that caused a group's step to fail; the step has left the variables unchanged.

        They are the longest ones if the bound is reached or memory does not suffice, unless it does without kept
        prefixes, or the columns that no sequence has; otherwise those whose step also fails alone, or all if none does.
        """
        streams = [stream for _, stream in group.members]
        found: dict[Stream, EngineError] = {}
        if isinstance(error, OutOfMemoryError) and self._prefixes.clear():
            return
        if isinstance(error, (StateError, OutOfMemoryError)):
            if group.longest < group.columns and self._make(streams):
                return
            found = {stream: error for stream in streams if stream.computed == group.longest}
        elif len(streams) > 1:
            found = self._failing_alone(group)
        for stream, why in (found or dict.fromkeys(streams, error)).items():
            self._leave(stream, why)

    def _failing_alone(self, group: SequenceGroup) -> dict[Stream, EngineError]:
        """The sequences of a group whose next token cannot be computed without the others either, and why."""
        found = dict[Stream, EngineError]()
        for row, stream in group.members:
            try:
                request = self._network.create_infer_request()
                request.gather([(group.request, row, stream.computed)])
                alone = SequenceGroup(request, [stream], stream.computed)
                self._infer(request, alone.inputs(), alone.adapters)
            except Exception as e:
                found[stream] = self._typed(e)
        return found

    def _drop_all(self, error: EngineError) -> None:
        """End the running sequences."""
        for stream in self._running:
            self._leave(stream, error)

    # -- groups ---------------------------------------------------------------------------------------------------

    @property
    def _cost(self) -> RunCost:
        weights = self._network.memory_statistics().get("weights", 0)
        return RunCost(weights or _UNKNOWN_WEIGHTS, self._position_bytes)

    def _regroup(self) -> None:
        """Make groups anew once that would have saved as much as it costs."""
        if self._division is None or self._steps % _DIVISION_STEPS == 0:
            self._division = division_of(self._groups, self._cost) if self._is_batched else Division([], 0, 0)
        self._steps += 1
        division = self._division
        if not division.parts:
            self._saved = 0
            return
        self._saved += division.saved
        if self._saved < division.price:
            return
        for part in division.parts:
            if not self._make(part):
                break  # the others stay where they are
        self._saved, self._division = 0, None

    def _make(self, streams: Sequence[Stream]) -> bool:
        """Let running sequences be a group of their own; False if that is not possible, and they stay as they are.

        Their adapters may have more ranks than the network takes, memory may not suffice for a second copy, or tokens
        of one must be computed again.
        """
        if not all(group.is_settled for group in self._groups):
            return False
        if not self._adapters.fits([stream.adapter for stream in streams]):
            return False
        places = {stream: (group.request, row) for group in self._groups for row, stream in group.members}
        request = self._network.create_infer_request()
        try:
            request.gather([(*places[stream], stream.computed) for stream in streams])
        except Exception:
            return False
        for stream in streams:
            self._leave(stream)
        self._groups.append(SequenceGroup(request, list(streams), max(stream.computed for stream in streams)))
        return True

    def _typed(self, error: BaseException) -> EngineError:
        """An error for the reader of a stream; one that is not of the SDK, such as a plugin's, is its cause."""
        if isinstance(error, EngineError):
            return error
        made = DeviceError(self._error_text(error, "computing a token failed"))
        made.__cause__ = error
        return made

    def _error_text(self, error: BaseException, what: str) -> str:
        return f"{self._network.signature.network}: {what}: {type(error).__name__}: {error}"

    def _infer(
        self, request: AsyncInferRequest, inputs: tuple[Array, Array, Array], adapters: Sequence[Adapter | None]
    ) -> Array:
        """The logits, for the inputs of `_inputs` and the adapter of each row."""
        given = self._inputs(*inputs) | self._adapters.inputs(adapters)
        logits: Array = request.infer(given)[self._names[LOGITS]]
        return logits

    def _inputs(self, ids: Array, mask: Array, positions: Array) -> dict[str, Array]:
        signature, given = self._network.signature, {}
        for role, value in ((IDS, ids), (MASK, mask), (POSITIONS, positions)):
            if (name := self._names.get(role)) is not None:
                given[name] = input_for(signature, name, value)
        return given


def _is_repeatable(network: ExecutableNetwork) -> bool:
    keys = network.get_metric(SUPPORTED_CONFIG_KEYS.name)
    return REPEATABLE.name in keys and bool(network.get_config(REPEATABLE.name))


def _require_batches(network: ExecutableNetwork, names: dict[str, str]) -> None:
    """Raise `InputError` unless sequences of different lengths can be in one batch."""
    is_masked = all(variable.is_masked for variable in network.variables)
    for state in network.signature.states:
        variable = state.variable
        if variable.is_placed:
            raise InputError(
                f"the model computes the positions at which it writes to variable `{variable.name}`, as "
                "GroupQueryAttention does, so sequences cannot join a batch; run engine.passes.MaskedCaches on the "
                "model before compiling it, or pass is_batched=False"
            )
        if variable.batch_axis is None:
            raise InputError(
                f"variable `{variable.name}` has no dimension of sequences, so there are no batches; pass "
                "is_batched=False"
            )
        # A state of a fixed size, as of linear attention, is a row of its own for each sequence. One whose size varies,
        # such as the last keys until they are as many as a window has, differs between sequences.
        is_fixed = all(dim.is_static for axis, dim in enumerate(state.before.shape) if axis != variable.batch_axis)
        if is_replaced(variable) and not is_fixed and not is_masked:
            raise InputError(
                f"variable `{variable.name}` is replaced by each inference and has shape {state.before.shape}; "
                "sequences of different lengths have no batches unless its size is fixed: pass is_batched=False"
            )
    # States of a fixed size do not depend on where a sequence is.
    has_columns = any(not is_replaced(variable) or variable.is_masked for variable in network.variables)
    for role in () if not has_columns else (MASK,) if is_masked else (MASK, POSITIONS):
        if role not in names:
            raise InputError(
                f"the model has no input `{role}`, which sequences of different lengths need; pass is_batched=False"
            )
