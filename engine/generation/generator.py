"""`Generator`: sequences of tokens, continued by a stateful language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

import numpy as np

from engine.errors import Busy, Cancelled, DeadlineExceeded, EngineError, InputError, StateError
from engine.generation.adapted import AdapterInputs, checked_adapters
from engine.generation.adapter import Adapter
from engine.generation.batch import Batch
from engine.generation.beam_search import BeamSearch, best_tokens
from engine.generation.preparation import prepare_runs
from engine.generation.roles import (
    COLUMNS,
    FILLED,
    IDS,
    LOGITS,
    MASK,
    POSITIONS,
    RANKS,
    STARTS,
    Array,
    Tokens,
    checked_names,
    checked_rows,
    checked_sampling,
    checked_stop_tokens,
    columns_of,
    input_for,
    is_replaced,
    largest_token,
    most_logits,
    require_any_number,
    require_checking,
    room_of,
    shown,
    vocabulary_of,
)
from engine.generation.sampling import Sampling
from engine.generation.speculation import (
    Choice,
    Draft,
    OtherVocabularyError,
    PromptLookup,
    Speculation,
    SpeculationStatistics,
    Turn,
    checked_proposer,
    chosen_tokens,
    completed,
    completed_async,
    copy_of,
)
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork, Signature
from engine.startup import dataclass

_MAX_SEQUENCES: Final = 1 << 20
"""A number of sequences that is larger is a mistake: a list of them would take all memory."""


class Generator:
    """One sequence of tokens, or a batch of them, and the request whose variables keep their keys and values.

    The network is a language model with variables (`engine.passes.MakeStateful`). Its inputs are `input_ids`
    [batch, tokens] and, where it has them, `attention_mask` [batch, tokens so far] and `position_ids` [batch, tokens],
    or [3, batch, tokens] in models that also see pictures; its output is `logits` [batch, tokens, vocabulary], or of
    the last token only. Other names can be given.

    A model with caches of a fixed length has an input for where it writes: `cache_position` [tokens], for all
    sequences, or `write_indices` [batch], the first position of each; `nonpad_kv_seqlen` [batch] is how many positions
    are filled then. Its `attention_mask` is as wide as the caches, and masks those that are not filled.

    Tokens are appended first and computed with the next token, so appending never fails halfway. An error, such as a
    length beyond the bound of the variables, leaves the generator as it was. Not thread-safe.

    With `draft`, several next tokens are proposed and computed in one run, as far as proposals are accepted; this needs
    the logits of all tokens. The likeliest tokens are the same as without, up to the rounding of runs of several
    tokens. Drawn tokens have the same probabilities, and with `PromptLookup` they are the same ones for the same seed.
    Each call still gives one token, and the variables of the request never are ahead of the given tokens. States that
    do not keep their past values return to before a run of which a token was refused, by a checkpoint, and the next
    step computes the accepted tokens again, at most as many as were proposed; fewer are proposed therefore. A batch of
    several sequences is computed without proposals.

    Args:
        network: the compiled model.
        sampling: how tokens are chosen; by default the likeliest.
        stop_tokens: a sequence ends with any of these.
        names: the model's names for these inputs and for `logits`, where they differ.
        draft: what proposes tokens: a smaller language model with the same tokens, or its `Draft`, which has options,
            or a `PromptLookup`.
        checkpoints: for models with states that do not keep their past values, such as linear attention's: before how
            many of the last inferences they are kept, so that `rewind` can return there. A checkpoint costs the memory
            of these states (`request.checkpoint_bytes`). A draft needs one.
        adapter: a low-rank adapter (`engine.generation.read_adapter`), or one for each sequence of the batch, None for
            none. The model must have been prepared by `engine.passes.MakeAdaptable`.

    Raises `InputError` if the network has other inputs than these, inputs of other ranks, or no variables, if
    `sampling` has tokens that the model does not have, if the draft has another number of tokens, and if proposals are
    not possible: the network computes the logits of the last token only, or a network takes a fixed number of tokens.
    Raises `AdapterError` if an adapter does not fit the network.
    """

    def __init__(
        self,
        network: ExecutableNetwork,
        sampling: Sampling | None = None,
        *,
        stop_tokens: Collection[int] = (),
        names: Mapping[str, str] | None = None,
        draft: ExecutableNetwork | Draft | PromptLookup | None = None,
        checkpoints: int = 0,
        adapter: Adapter | Sequence[Adapter | None] | None = None,
    ) -> None:
        self._network = network
        self._names = checked_names(
            network.signature,
            {} if names is None else names,
            tuple(RANKS),
            self._further_names(network),
            has_ids=self._has_ids,
        )
        self.sampling = checked_sampling(sampling)
        self.stop_tokens = checked_stop_tokens(stop_tokens)
        self._vocabulary = vocabulary_of(network.signature, self._names[LOGITS])
        self.sampling.check(self._vocabulary)
        self._largest = self._largest_token()
        self._room = room_of(network.signature, self._names)
        self._speculation = None if draft is None else self._made_speculation(draft)
        self._proposal_room = columns_of(network.signature, self._room)
        self._most_checked = most_logits(network.signature, self._names[LOGITS])
        """How many tokens the logits of a run are of, at most; None if they are of all."""
        self._width = self._vocabulary
        """The number of logits, which the first run gives if the model does not state it."""
        self._request = network.create_infer_request()
        if isinstance(checkpoints, bool) or not isinstance(checkpoints, int) or checkpoints < 0:
            raise InputError(f"checkpoints is {checkpoints!r}; expected 0 or more")
        self._is_replaced = any(is_replaced(each) for each in network.variables)
        # The one before a run with proposed tokens, of which some are refused.
        self._checkpoints = max(checkpoints, int(self._is_replaced and self._speculation is not None))
        self._request.keep_checkpoints(self._checkpoints)
        self._marks: list[int] = []
        """The tokens that were computed before each inference whose values the request keeps."""
        self._sequences: Batch | None = None
        self._ahead = _NOTHING_AHEAD
        self._future: AsyncInferRequest | None = None
        """The variables behind the tokens that were chosen ahead."""
        self._is_interrupted = False
        """Whether the last run was given up by its caller: it may have ended, and the request be ahead."""
        self._adapter_inputs = AdapterInputs(network.signature)
        self.adapter = adapter

    # -- sequences --------------------------------------------------------------------------------------------

    @property
    def request(self) -> AsyncInferRequest:
        """The request; its `cancel` stops a step that another thread runs."""
        return self._request

    @property
    def vocabulary(self) -> int | None:
        """The number of tokens that the model knows; None if its output does not state it."""
        return self._vocabulary

    @property
    def speculation(self) -> SpeculationStatistics | None:
        """How many tokens were proposed and accepted; None without `draft`."""
        return None if self._speculation is None else self._speculation.statistics

    @property
    def adapter(self) -> Adapter | Sequence[Adapter | None] | None:
        """The adapter, or one for each sequence; it may be set at any time.

        The next tokens are computed with it. Keys and values of earlier tokens stay as they are: call `reset` for what
        the other adapter alone gives. Raises `AdapterError` if it does not fit the network, and keeps the former one.
        """
        return self._adapter

    @adapter.setter
    def adapter(self, adapter: Adapter | Sequence[Adapter | None] | None) -> None:
        checked = checked_adapters(adapter)
        each = checked if isinstance(checked, list) else [checked]
        if self._sequences is not None:
            self._require_adapters(checked, len(self._sequences.rows))
        self._adapter_inputs.check(each)
        self._settle()
        self._adapter = checked

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each sequence so far, those not yet computed included."""
        return [] if self._sequences is None else [list(row) for row in self._sequences.rows]

    @property
    def is_done(self) -> bool:
        """Whether every sequence has ended with a stop token."""
        return self._sequences is not None and all(self._sequences.ended)

    @property
    def forbidden_tokens(self) -> list[int]:
        """The tokens that are not chosen next; those that `Sampling.logit_bias` forbids are never chosen."""
        return []

    def append(self, tokens: Tokens) -> None:
        """Append tokens to the sequence, or to each sequence of a batch: a list, or a list of lists.

        The first call determines the number of sequences. The prompts of a batch may have different lengths: shorter
        ones are padded, and the padding is masked. Later, all sequences get the same number of tokens.

        Raises `InputError` for tokens that the model does not have, another number of sequences, different lengths
        later or for a model without `attention_mask`, and for a batch in which a sequence has ended.
        """
        rows = checked_rows(tokens, self._vocabulary, self._largest)
        known = self._sequences or Batch.empty(len(rows), self.sampling.seed)
        if self._sequences is None:
            self._check_first(rows)
        if len(rows) != len(known.rows):
            raise InputError(f"got tokens for {len(rows)} sequences; expected {len(known.rows)}, as before")
        if len(rows) > 1 and any(known.ended):
            raise InputError(
                "sequences of the batch have ended; call reset, or continue each in a generator of its own"
            )
        if len({len(row) for row in rows}) > 1:
            self._require_mask("sequences of different lengths")
            self._refuse_padding()
            if known.length:
                raise InputError("the sequences of a batch must get equally many tokens after their prompts")
        self._require_adapters(self._adapter, len(rows))
        self._settle()
        self._sequences = known.extended(rows)
        self._sequences.ended = [False] * len(rows)
        if self._speculation is not None:
            self._speculation.begin(max(map(len, rows)))

    def fork(self) -> Self:
        """A generator that continues from the same tokens; neither sees the other's further tokens."""
        if self._is_interrupted:
            self._recover()
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._request = self._request.fork()
        made._future = self._future.fork() if self._future is not None and self._ahead.tokens else None
        made._marks = list(self._marks)
        made._sequences = None if self._sequences is None else self._sequences.copy()
        made._ahead = self._ahead.copy()
        made._speculation = None if self._speculation is None else self._speculation.fork()
        return made

    def reset(self) -> None:
        """Forget all tokens, so that the next prompt starts a new text."""
        self._proposal_room = columns_of(self._network.signature, self._room)
        self._request.reset_state()
        self._forget_ahead()
        self._sequences, self._is_interrupted = None, False
        if self._speculation is not None:
            self._speculation.reset()
        self._marks = []

    def rewind(self, count: int) -> None:
        """Forget the last `count` tokens of each sequence.

        Caches of a fixed length keep the keys and values of these tokens, masked, until others are written over them.
        States that do not keep their past values return to the last checkpoint before; the next step computes the
        tokens since then again. Raises `StateError`, and forgets none, if a sequence is shorter, a batch was padded
        among them, or no checkpoint is old enough.
        """
        known = self._sequences
        length = 0 if known is None else known.length
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= length:
            raise StateError(f"cannot rewind by {count!r} tokens; the sequences have {length}")
        if known is None or not count:
            return
        shortened = known.shortened(count)
        self._settle()
        if known.computed > shortened.computed and self._is_replaced:
            shortened.computed = self._return_to(shortened.computed, known.computed)
        else:
            self._take_back(known.computed - shortened.computed)
        self._sequences = shortened

    def reorder(self, indices: Sequence[int]) -> None:
        """Continue sequence i from the tokens of sequence `indices[i]`, as beam search does. Raises `StateError`."""
        self._settle()
        self._request.reorder(indices)
        self._follow(indices)
        if self._sequences is not None:
            self._sequences = self._sequences.reordered(indices)
        if isinstance(self._adapter, list):
            self._adapter = [self._adapter[i] for i in indices]

    def repeat(self, count: int) -> None:
        """Continue the sequence in `count` ways, as a batch of so many sequences.

        Its tokens are computed once, and their keys and values copied. Each of the others draws numbers of its own, as
        in a batch of equal prompts. Raises `InputError` unless there is one sequence with tokens, `StateError` if the
        variables have no dimension of sequences, or one of a fixed length, and the errors of the request.
        """
        _check_count(count, "count")
        if count > _MAX_SEQUENCES:
            raise InputError(f"count is {shown(count)}; expected {_MAX_SEQUENCES} at most")
        known = self._sequences
        if known is None or len(known.rows) != 1:
            raise InputError(f"repeat continues one sequence, and there are {0 if known is None else len(known.rows)}")
        self._settle()
        if known.length - known.computed > 1:
            self._sequences = known.shortened(1)
            try:
                self.logits()
            finally:
                self._sequences = known
            known.computed = known.length - 1
        if known.computed:
            self._request.reorder([0] * count)
        self._follow([0] * count)
        repeated = known.reordered([0] * count)
        if isinstance(self._adapter, list):
            self._adapter = self._adapter * count
        seed = self.sampling.seed
        repeated.randoms[1:] = [np.random.default_rng(None if seed is None else [seed, row]) for row in range(1, count)]
        self._sequences = repeated

    def warm_up(self, tokens: int = 128, sequences: int = 1) -> None:
        """Prepare prompts, and tokens after them, so that the first ones take no longer than later ones.

        Without it, the first prompt, the first token, and the first tokens appended to a text take longer, on devices
        that make plans for them. Prompts of several times `tokens` are included. Computes nothing, and changes no
        sequence.
        """
        _check_count(sequences, "sequences")

        def runs(tokens: int) -> Iterator[tuple[dict[str, Array], int]]:
            for past, new in ((0, tokens), (tokens, 1), (tokens, tokens)):
                known = Batch.empty(sequences, None).extended([[0] * (past + new)] * sequences)
                known.computed = past
                yield self._inputs(known)[0], past

        prepare_runs(self._network, tokens, runs, self._room)

    # -- the next tokens --------------------------------------------------------------------------------------

    def logits(self) -> Array:
        """Compute the appended tokens; returns the logits [batch, vocabulary] of what follows. Appends nothing.

        Raises `InputError` if no tokens were appended since the last step, and the errors of the request.
        """
        return completed(self.computed_logits())

    def computed_logits(self) -> Turn[Array]:
        """`logits`, as a computation that `completed` runs."""
        self._settle()
        for part in self._earlier_parts(self._sequences):
            inputs, _ = self._inputs(part)
            yield from self._run(inputs)
            self._note_run(part.computed)
            assert self._sequences is not None
            self._sequences.computed = part.length
        inputs, known = self._inputs(self._sequences)
        result = yield from self._run(inputs)
        return self._computed(known, result[self._names[LOGITS]])

    def step(self) -> list[int | None]:
        """Compute the appended tokens, choose the next token of each sequence and append it.

        Returns the chosen tokens; None for sequences that had ended. Raises what `logits` raises.
        """
        return completed(self._step(None))

    def stream(self, max_tokens: int = 256) -> Iterator[int]:
        """The next tokens of one sequence, each as soon as it is computed, up to a stop token, which is the last.

        Raises `InputError` for a batch (use `step`), and what `step` raises.
        """
        self._require_one(max_tokens)
        for index in range(max_tokens):
            (token,) = completed(self._step(max_tokens - index))
            if token is None:
                return
            yield token
            if token in self.stop_tokens:
                return

    async def stream_async(self, max_tokens: int = 256) -> AsyncIterator[int]:
        """`stream` for asyncio: the event loop is free while a token is computed.

        Cancelling the task cancels the step, which leaves the generator as it was.
        """
        self._require_one(max_tokens)
        for index in range(max_tokens):
            (token,) = await completed_async(self._step(max_tokens - index))
            if token is None:
                return
            yield token
            if token in self.stop_tokens:
                return

    def generate(
        self, tokens: Tokens, max_tokens: int = 256, *, n: int = 1, beams: BeamSearch | None = None
    ) -> list[list[int]]:
        """Append tokens, and return the next tokens of each sequence: up to a stop token, at most `max_tokens`.

        With `n` above 1, one sequence is continued in as many ways: see `repeat`.

        With `beams`, the tokens are those of the `n` best sequences that the search finds for each sequence, one after
        another; none is appended, so that `append` continues the prompts. `BeamSearch.search` also gives the scores.
        """
        self._check_options(max_tokens, n, beams)
        self.append(tokens)
        return self._generated(max_tokens, n, beams)

    # -- what generators of networks with further inputs override ---------------------------------------------

    _has_ids = True
    """Whether the network itself takes tokens."""

    def _largest_token(self) -> int:
        """The largest number that the input of tokens can hold."""
        return largest_token(self._network.signature, self._names[IDS])

    def _further_names(self, network: ExecutableNetwork) -> frozenset[str]:
        """The inputs of the network that `_further_inputs` gives."""
        return frozenset()

    def _further_inputs(self, known: Batch) -> dict[str, Array]:
        """The values of these inputs for the next run."""
        return {}

    def _check_first(self, rows: list[list[int]]) -> None:
        """Raise `InputError` if these cannot be the first tokens."""

    def _follow(self, indices: Sequence[int]) -> None:
        """Sequence i continues sequence `indices[i]` from now on."""

    # -- internals --------------------------------------------------------------------------------------------

    @staticmethod
    def _check_options(max_tokens: int, n: int, beams: BeamSearch | None) -> None:
        _check_count(max_tokens)
        _check_count(n, "n")
        if beams is not None and not isinstance(beams, BeamSearch):
            raise InputError(f"beams is {beams!r:.80}; expected a BeamSearch, such as BeamSearch(beams=4)")
        if beams is not None and n > beams.beams:
            raise InputError(f"n is {shown(n)}; expected at most the number of beams, {beams.beams}")

    def _generated(self, max_tokens: int, n: int, beams: BeamSearch | None) -> list[list[int]]:
        """The next tokens of each sequence, as `generate` describes them."""
        if beams is not None:
            return best_tokens(beams.search(self, max_tokens), n)
        if n > 1:
            self.repeat(n)
        found: list[list[int]] = [[] for _ in self.tokens]
        for index in range(max_tokens):
            if self.is_done:
                break
            for row, token in zip(found, completed(self._step(max_tokens - index)), strict=True):
                if token is not None:
                    row.append(token)
        return found

    def _step(self, most: int | None) -> Turn[list[int | None]]:
        """The next token of each sequence; at most `most` will be asked for."""
        known, ahead = self._sequences, self._ahead
        if ahead.tokens and known is not None and ahead.is_of(self):
            (token, random), *later = ahead.tokens
            self._give(known, token, random, self._advance(known, len(later)))
            self._ahead = replace(ahead, tokens=later)
            if not later:
                self._forget_ahead()
            return [token]
        self._settle()
        self.sampling.check(self._vocabulary)
        speculation = self._speculation if known is not None and len(known.rows) == 1 else None
        if speculation is not None and known is not None and known.length - known.computed == 1 and not known.ended[0]:
            found = yield from self._speculated(speculation, known, most)
            if found is not None:
                return [found]
        chosen = self._chosen((yield from self.computed_logits()))
        if speculation is not None and chosen[0] is not None:
            speculation.record(0, 0, 1)
        return chosen

    def _speculated(self, speculation: Speculation, known: Batch, most: int | None) -> Turn[int | None]:
        """The next token, by a run that computes proposed tokens, too; None if there are none."""
        limits = [most - 1] if most is not None else []
        limits += [self._most_checked - 1] if self._most_checked is not None else []
        limits += [self._proposal_room - known.length] if self._proposal_room is not None else []
        most = min(limits, default=len(known.rows[0]))
        if self._width is None or not (count := speculation.count(len(known.rows[0]), most)):
            return None
        seen, random, generated = known.seen(0, self.sampling)
        choice = Choice(self.sampling, seen, generated, random)
        ids = known.ids[0][known.mask[0]]
        try:
            proposals = yield from speculation.proposed(known.rows[0], ids, count, self._width, choice)
        except (Busy, Cancelled, DeadlineExceeded, OtherVocabularyError):
            raise
        except EngineError:  # such as more positions than the draft has
            speculation.refuse(len(known.rows[0]))
            return None
        count = len(proposals.tokens)
        if not count:
            return None
        try:
            inputs, _ = self._inputs(known.extended([proposals.tokens]))
            result = yield from self._run(inputs)
        except (Busy, Cancelled, DeadlineExceeded):
            raise
        except EngineError:
            # Such as more positions than the model has. The run without proposals decides whether there is an error.
            self._proposal_room = known.length
            return None
        self._note_run(known.computed)
        try:
            logits = self._logits_of(result[self._names[LOGITS]], count + 1)
            chosen = chosen_tokens(proposals, logits, choice, self.stop_tokens)
        except EngineError:
            self._undo_run(count + 1)
            raise
        accepted = len(chosen) - 1 + (len(chosen) <= count and chosen[-1][0] == proposals.tokens[len(chosen) - 1])
        speculation.record(count, accepted, len(chosen))
        (token, random), *later = chosen
        self._give(known, token, random, self._return(known, count + 1 - len(chosen), len(later)))
        self._ahead = _Ahead(later, self.sampling, self.stop_tokens)
        return token

    def _return(self, known: Batch, refused: int, later: int) -> int:
        """Let the request have the tokens of `known` after a run with proposed ones, of which the last `refused` ones
        were refused, and `later` are given later; returns how many of its tokens are computed.

        A state that does not keep its past values is the one before the run until all tokens have been given; if some
        were refused, the next step computes the others again.
        """
        if self._is_replaced:
            if not refused:
                self._keep_future()
            self._undo_run(refused)
            return known.computed
        self._take_back(refused)
        if later and not self._is_written:
            self._keep_future()
            self._take_back(later)
        return known.length

    def _advance(self, known: Batch, later: int) -> int:
        """Let the request have the tokens of `known`, of which the last one is given next, if `later` ones are given
        after it; returns how many of its tokens are computed.
        """
        if self._is_replaced and (later or self._future is None):
            return known.computed
        if self._future is not None:
            self._request.adopt(self._future)
            if self._is_replaced:
                self._note_run(known.computed)
            self._take_back(later)
        return known.length

    def _keep_future(self) -> None:
        """Keep what the request has now."""
        if self._future is None:
            self._future = self._network.create_infer_request()
        self._future.adopt(self._request)

    def _forget_ahead(self) -> None:
        """Forget tokens that were chosen ahead, and the memory of their variables."""
        self._ahead, self._future = _NOTHING_AHEAD, None

    def _logits_of(self, logits: Array, count: int) -> Array:
        """The logits [count, vocabulary] of the last tokens of one sequence."""
        if logits.ndim != 3 or len(logits) != 1 or logits.shape[1] < count:
            raise InputError(
                f"the model's logits have shape {logits.shape}; expected [1, {count}, vocabulary] for {count} tokens; "
                "without them, a generator cannot have a draft"
            )
        found: Array = logits[0, -count:]
        return found

    def _give(self, known: Batch, token: int, random: np.random.Generator, computed: int) -> None:
        """Append a chosen token, behind tokens of which so many are computed."""
        extended = known.extended([[token]], is_generated=True)
        extended.computed, extended.randoms, extended.ended = computed, [random], [token in self.stop_tokens]
        self._sequences = extended

    def _earlier_parts(self, known: Batch | None) -> Iterator[Batch]:
        """The tokens before the last ones, in parts, for a model that takes a fixed number of tokens."""
        if known is None or IDS not in self._names:
            return
        shape = self._network.signature.inputs[self._network.signature.find_input(self._names[IDS])].shape
        if shape.rank.is_dynamic or shape[1].is_dynamic:
            return
        width = shape[1].get_length()
        if known.mask[:, known.computed :].all() and not (known.length - known.computed) % width:
            while (left := known.length - known.computed) > width:
                yield known.shortened(left - width)

    def _run(self, inputs: dict[str, Array]) -> Turn[Mapping[str, Array]]:
        try:
            return (yield self._request, inputs)
        except GeneratorExit:  # such as Ctrl-C, or a task that was cancelled when the outputs were there
            self._is_interrupted = True
            raise

    def _recover(self) -> None:
        """Take back what an interrupted run has computed, after its end. Raises what `request.rewind` raises."""
        with suppress(EngineError):  # such as `Cancelled`: it has computed nothing
            self._request.wait()
        computed = 0 if self._sequences is None else self._sequences.computed
        before = [int(v.initial.shape[v.axis]) for v in self._network.variables if v.axis is not None]
        if not before and self._is_replaced:
            raise StateError(
                f"{self._network.signature.network}: the last run was interrupted, and no variable grows, so it is not "
                "known whether the variables have its tokens; start again with reset"
            )
        if before:
            self._take_back(max(0, self._request.length - before[0] - computed))
        self._is_interrupted = False

    def _settle(self) -> None:
        """Forget tokens that were chosen ahead; afterwards, the request has the tokens of the generator."""
        if self._is_interrupted:
            self._recover()
        self._forget_ahead()

    def _undo_run(self, count: int) -> None:
        """Return to before a run with proposed tokens, or take back its last `count` columns."""
        if self._is_replaced:
            self._request.undo(1)
            self._marks.pop()
        else:
            self._take_back(count)

    def _take_back(self, count: int) -> None:
        """Remove the last `count` columns from the variables; caches of a fixed length are written over."""
        if count and not self._is_written:
            self._request.rewind(count)

    @property
    def _is_written(self) -> bool:
        """Whether all variables are caches of a fixed length, which keep what was written."""
        return all(variable.written_axis is not None for variable in self._network.variables)

    def _made_speculation(self, draft: object) -> Speculation:
        signature = self._network.signature
        options = checked_proposer(draft)
        require_any_number(signature, self._names)
        require_checking(signature, self._names, options.tokens)
        # Where refused tokens cannot be taken back, the accepted ones are computed again.
        factor = 2 if any(is_replaced(each) for each in self._network.variables) else 1
        if isinstance(options, PromptLookup):
            return Speculation(options, None, None, factor)
        return Speculation(options, *draft_generator(options, signature, self._vocabulary), factor)

    def _inputs(self, known: Batch | None) -> tuple[dict[str, Array], Batch]:
        if known is None or known.computed == known.length:
            raise InputError("there are no new tokens to compute; call append first")
        if not known.computed:
            known = known.compacted()
        if self._room is not None and known.length > self._room:
            raise StateError(
                f"{self._network.signature.network}: the sequences would have {known.length} tokens, and the model's "
                f"caches have {self._room} positions; the request is unchanged: shorten the sequences with rewind, or "
                "start again with reset"
            )
        count = len(known.rows)
        empty = 0 if self._room is None else self._room - known.length
        values = {
            IDS: known.ids[:, known.computed :],
            MASK: np.pad(known.mask, ((0, 0), (0, empty))).astype(np.int64),
            POSITIONS: known.positions[:, known.computed :],
            COLUMNS: np.arange(known.computed, known.length),
            STARTS: np.full(count, known.computed),
            FILLED: np.full(count, known.length),
        }
        signature = self._network.signature
        given = {
            name: input_for(signature, name, value)
            for role, value in values.items()
            if (name := self._names.get(role)) is not None
        }
        adapters = self._adapter if isinstance(self._adapter, list) else [self._adapter] * count
        return given | self._adapter_inputs.inputs(adapters) | self._further_inputs(known), known

    def _note_run(self, computed: int) -> None:
        """Note how many tokens were computed before an inference, whose values the request keeps."""
        if self._checkpoints:
            self._marks = [*self._marks, computed][-self._checkpoints :]

    def _return_to(self, wanted: int, computed: int) -> int:
        """Return to the last checkpoint of at most `wanted` computed tokens; how many it has. Raises `StateError`."""
        count = len(self._request.checkpoints)
        self._marks = self._marks[len(self._marks) - count :]  # others, such as of a state that was set, are dropped
        index = next((i for i in reversed(range(len(self._marks))) if self._marks[i] <= wanted), None)
        if index is None:
            name = next(each.name for each in self._network.variables if is_replaced(each))
            oldest = f"the oldest is after {self._marks[0]}" if self._marks else "there is none"
            raise StateError(
                f"{self._network.signature.network}: cannot rewind to {wanted} of {computed} computed tokens: variable "
                f"`{name}` does not keep its past values, and no checkpoint is old enough; {oldest}. Keep more: "
                "Generator(checkpoints=...), or start again with reset"
            )
        self._request.undo(len(self._marks) - index)
        mark, self._marks = self._marks[index], self._marks[:index]
        return mark

    def _computed(self, known: Batch, logits: Array) -> Array:
        """The logits for the last token of each sequence, taken from the logits of all new tokens or of only the last
        ones.
        """
        new = known.mask[:, known.computed :]
        self._note_run(known.computed)
        self._sequences = known
        known.computed = known.length
        chosen = self._last_of(new, logits)
        self._width = chosen.shape[-1]
        if not known.mask[:, -1].all() and known.length == new.shape[1]:
            self._move_padding(known)
        return chosen

    def _move_padding(self, known: Batch) -> None:
        """Let the prompts of a batch end at the same column, so that a window over the last columns has their tokens.

        Not for a model that computes the positions at which it writes.
        """
        variables = self._network.variables
        axes = [v.axis if v.written_axis is None else v.written_axis for v in variables]
        if None in axes or any(v.is_placed or v.batch_axis is None for v in variables):
            return
        counts = known.length - 1 - known.mask[:, ::-1].argmax(axis=1)
        columns = (np.arange(known.length) + counts[:, None] + 1) % known.length
        self._request.move_positions(columns)
        for name in ("ids", "mask", "positions"):
            setattr(known, name, np.take_along_axis(getattr(known, name), columns, axis=1))

    @staticmethod
    def _last_of(new: Array, logits: Array) -> Array:
        if logits.ndim == 3 and len(logits) == len(new):
            if logits.shape[1] == new.shape[1]:
                last = new.shape[1] - 1 - new[:, ::-1].argmax(axis=1)
                chosen: Array = logits[np.arange(len(new)), last]
                return chosen
            if 1 <= logits.shape[1] <= new.shape[1] and (new[:, -1].all() or new.shape[1] == 1):
                return logits[:, -1]
        raise InputError(
            f"the model's logits have shape {logits.shape}; expected [{len(new)}, {new.shape[1]}, vocabulary]"
        )

    def _chosen(self, logits: Array) -> list[int | None]:
        known = self._sequences
        assert known is not None
        if forbidden := self.forbidden_tokens:
            logits = logits.copy()
            logits[:, forbidden] = -np.inf
        chosen: list[int | None] = [
            None if ended else self.sampling.choose(row, *known.seen(index, self.sampling))
            for index, (row, ended) in enumerate(zip(logits, known.ended, strict=True))
        ]
        if all(known.ended):
            return chosen
        # An ended sequence is padded.
        extended = known.extended([[] if token is None else [token] for token in chosen], is_generated=True)
        extended.ended = [ended or token in self.stop_tokens for ended, token in zip(known.ended, chosen, strict=True)]
        self._sequences = extended
        return chosen

    @staticmethod
    def _require_adapters(adapter: Adapter | Sequence[Adapter | None] | None, count: int) -> None:
        if isinstance(adapter, list) and len(adapter) != count:
            raise InputError(f"adapter has {len(adapter)} elements; expected one for each of {count} sequences")

    def _require_one(self, max_tokens: int) -> None:
        _check_count(max_tokens)
        if self._sequences is not None and len(self._sequences.rows) != 1:
            raise InputError(f"stream continues one sequence, and there are {len(self._sequences.rows)}; use step")

    def _refuse_padding(self) -> None:
        for variable in self._network.variables:
            if is_replaced(variable) and not variable.is_placed:
                raise InputError(
                    f"variable `{variable.name}` is a state that padding would change, so the prompts of a batch must "
                    "have one length; run sequences of different lengths one by one"
                )

    def _require_mask(self, what: str) -> None:
        # Padding is written to columns of its own; the columns must not be taken for positions.
        needed = [MASK, COLUMNS, POSITIONS] if self._room is not None else [MASK]
        if COLUMNS in self._names and self._room is None:
            needed.append(POSITIONS)
        for role in needed:
            if role not in self._names:
                raise InputError(f"the model has no input `{role}`, which {what} need; run them one by one")


def draft_generator(options: Draft, signature: Signature, vocabulary: int | None) -> tuple[Generator, int | None]:
    """The generator of a draft for a network with so many tokens, and the most tokens that it can have.

    Raises `InputError` if its tokens are others, or it takes a fixed number of them.
    """
    # A checkpoint before each token that it proposes.
    made = Generator(options.network, names=options.names, checkpoints=options.tokens + 1)
    require_any_number(options.network.signature, made._names)
    if None not in (vocabulary, made.vocabulary) and vocabulary != made.vocabulary:
        raise InputError(
            f"{options.network.signature.network}: the draft has {made.vocabulary} tokens, and "
            f"{signature.network} {vocabulary}; expected a draft with the same tokens"
        )
    return made, columns_of(options.network.signature, made._room)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Tokens that were chosen in the same run as the last one, each with what draws the numbers after it."""

    tokens: list[tuple[int, np.random.Generator]]
    sampling: Sampling | None = None
    stop_tokens: frozenset[int] = frozenset()

    def copy(self) -> _Ahead:
        """The same tokens, for a generator that draws its own numbers after them."""
        return replace(self, tokens=[(token, copy_of(random)) for token, random in self.tokens])

    def is_of(self, generator: Generator) -> bool:
        """Whether a generator would still choose these tokens, and not end before them."""
        return self.sampling == generator.sampling and self.stop_tokens == generator.stop_tokens


_NOTHING_AHEAD: Final = _Ahead([])


def _check_count(count: int, name: str = "max_tokens") -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"{name} is {count!r}; expected 1 or more")
