"""`GenerativeModel`: a language model whose sequences are computed together, and whose tokens are streamed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse

from engine.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    NotReadyError,
    TooLargeError,
    UnsupportedError,
)
from engine.generation import (
    Adapter,
    Constraint,
    Draft,
    PromptLookup,
    Sampling,
    Scheduler,
    SchedulerStatistics,
    Stream,
    TokenLogProbabilities,
)
from engine.plugin_api import ExecutableNetwork
from engine_serve import metrics
from engine_serve.chat_template import ChatTemplate
from engine_serve.daemon_threads import DaemonThreads
from engine_serve.deadlines import seconds_left
from engine_serve.event_loop import when_done
from engine_serve.generation_parameters import generation_of
from engine_serve.model_config import Generation, ModelConfig
from engine_serve.model_text import ModelText
from engine_serve.parameters import REQUEST, SEQUENCE, check_request
from engine_serve.refusals import Refused, refusing, unexpected
from engine_serve.request_queue import Times
from engine_serve.served_model import ServedModel
from engine_serve.shared_tensors import RegionOutput
from engine_serve.structured_output import Grammars
from engine_serve.tensors import array_of
from engine_serve.tracing import generation_span, in_span

_log = logging.getLogger("engine.serving")

IDS: Final = "input_ids"
TOKENS: Final = "tokens"
OF_MODEL: Final = ":"
"""Between the name of a model and of its adapter."""
_PREPARED_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens to continue, and the parameters.

    Attributes:
        stop: texts before which the answer ends; `stop_tokens`: tokens after which it does.
        top: how many of the likeliest tokens the answer lists log probabilities of; None: it has none at all.
        constraint: makes what restricts the tokens of one answer.
        adapter: of the answer.
    """

    tokens: list[int]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    top: int | None = None
    constraint: Callable[[], Constraint] | None = None
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A token, and the text that it completes; the last piece has no token, the rest of the text, and the reason.

    Attributes:
        finish_reason: why the answer has ended, in the terms of OpenAI's API: "stop" after a stop token or before a
            stop text, "length" after the most tokens.
        log: how likely the token was.
    """

    token: int | None
    text: str
    finish_reason: str | None = None
    log: TokenLogProbabilities | None = None


class GeneratedSequences:
    """The sequences of a model, counted as `RequestQueue` counts inferences."""

    def __init__(self, slots: int) -> None:
        self._slots, self.count = slots, 0
        self._awaited, self._progress = 0, 0.0

    @property
    def waiting(self) -> int:
        """How many wait for a place in the batch."""
        return max(0, self.count - self._slots)

    @property
    def waiting_bytes(self) -> int:
        """0: prompts are not counted, since they are small compared with the states of the sequences."""
        return 0

    @property
    def running(self) -> int:
        """The number of sequences that have a slot and are computed."""
        return min(self.count, self._slots)

    @property
    def longest_run(self) -> float:
        """The seconds since the last token while tokens are awaited; 0 if none is awaited."""
        return time.perf_counter() - self._progress if self._awaited else 0.0

    def begin_token(self) -> None:
        """Record that a token is awaited, which it is not while the client reads the one before."""
        if not self._awaited:
            self._progress = time.perf_counter()
        self._awaited += 1

    def end_token(self) -> None:
        """Record that the token has arrived, or its sequence has ended."""
        self._awaited -= 1
        self._progress = time.perf_counter()


class GenerativeModel(ServedModel):
    """A network with a `Scheduler`. A client that disconnects, or whose deadline passes, frees its place at once."""

    def __init__(
        self,
        name: str,
        version: int,
        network: ExecutableNetwork,
        config: ModelConfig,
        clock: metrics.DeviceClock,
        tally: metrics.Tally,
        text: ModelText | None = None,
        chat: ChatTemplate | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        draft: Draft | PromptLookup | None = None,
    ) -> None:
        self._generation = config.generation or Generation()
        kept = self._generation.prefix_cache_bytes
        is_batched = not any(variable.is_placed for variable in network.variables)
        if not is_batched:
            _log.warning(
                "model `%s` computes where it writes its caches, so sequences are computed one after another; a blob "
                "may not, if it is compiled with --masked-caches",
                name,
            )
        slots = self._generation.slots
        self._draft = draft.network if isinstance(draft, Draft) else None
        self._scheduler = Scheduler(network, slots, prefix_cache_bytes=kept, is_batched=is_batched, draft=draft)
        super().__init__(name, version, network, config, clock, tally)
        self.slots = slots
        self._sequences = self.queue = GeneratedSequences(self._generation.slots)
        # A thread for each sequence waits for its next token.
        self._readers = ThreadPoolExecutor(self._generation.slots + config.queue_size, f"engine-tokens-{name}")
        self.text, self._chat, self._is_retired, self._is_closed = text, chat, False, False
        variables = [each for each in network.variables if each.axis is not None]
        bounds = [each.bound - each.initial.shape[each.axis or 0] for each in variables if each.bound is not None]
        self._bound = min(bounds, default=None)
        self._grammars: Grammars | None = None
        self.adapters = adapters or {}
        if text is not None and text.problem:
            _log.warning("model `%s` has no text: %s", name, text.problem, extra={"model": name})
        self._inputs = [{"name": IDS, "datatype": "INT64", "shape": [1, -1]}]
        self._outputs = [{"name": TOKENS, "datatype": "INT64", "shape": [1, -1]}]

    @property
    def has_text(self) -> bool:
        """Whether it accepts and returns text, by the tokenizer beside its file."""
        return self.text is not None and not self.text.problem

    @property
    def problem(self) -> str:
        """Why it cannot generate tokens until it is loaded again; "" if it can."""
        return "" if self._scheduler.failure is None else str(self._scheduler.failure)

    @property
    def scheduled(self) -> SchedulerStatistics:
        """What its scheduler does now, and has proposed since it was loaded."""
        return self._scheduler.statistics

    @property
    def openai_names(self) -> tuple[str, ...]:
        """Its name, without and with each adapter."""
        return (self.name, *(f"{self.name}{OF_MODEL}{adapter}" for adapter in self.adapters))

    @property
    def memory_bytes(self) -> int:
        """The bytes of the network, of its draft, of the keys and values of sequences, and of those that are kept."""
        found = self.scheduled
        draft = 0 if self._draft is None else sum(self._draft.memory_statistics().values())
        return super().memory_bytes + draft + found.state_bytes + found.prefix_bytes

    def warm_up(self, tokens: int | None = None) -> None:
        """Have the network prepare prompts of so many tokens, and batches of tokens after them; by default of 128, or
        of fewer if the model takes no more.

        Raises `InputError` if it cannot take so many.
        """
        if tokens is None:
            tokens = _PREPARED_TOKENS if self._bound is None else min(_PREPARED_TOKENS, self._bound)
        if self._bound is not None and tokens > self._bound:
            raise InputError(f"the model takes sequences of at most {self._bound} tokens, and so no such prompts")
        self._scheduler.warm_up(tokens)

    def prompt(self, given: str | Sequence[int], parameters: Mapping[str, Any]) -> Prompt:
        """The prompt and the parameters of a request; a parameter of None counts as omitted.

        Raises `InputError`, also for a parameter that is not supported; `TooLargeError`; and `UnsupportedError` for a
        text without a tokenizer.
        """
        options = generation_of(parameters)
        if isinstance(given, str):
            tokens = self.require_text().encode(given)
        else:
            tokens = list(given)
            if not all(type(token) is int for token in tokens):
                raise InputError("the prompt must be a text, or a list of numbers of tokens")
        if options.stop and not self.has_text:
            self.require_text("`stop` needs text")
        own = () if options.ignores_stop_tokens else self._generation.stop_tokens
        wanted = self._max_tokens(len(tokens), options.max_tokens)
        return Prompt(tokens, wanted, options.sampling, options.stop, options.stop_tokens.union(own))

    def require_text(self, what: str = "give the prompt as numbers of tokens") -> ModelText:
        """The tokenizer. Raises `UnsupportedError` if there is none, or another model's."""
        if self.text is None:
            raise UnsupportedError(f"model `{self.name}` has no tokenizer.json beside it; {what}")
        self.text.require()
        return self.text

    async def chat_tokens(self, values: Mapping[str, Any]) -> list[int]:
        """The tokens of a chat, by the chat template of the tokenizer. Raises the errors of `ChatTemplate.render`, and
        `UnsupportedError` without a template.
        """
        text = self.require_text("chats need one")
        if self._chat is None:
            raise UnsupportedError(
                f"model `{self.name}` has no chat template, in chat_template.jinja or tokenizer_config.json beside it; "
                "send completions"
            )
        return text.encode(await self._chat.render(values), has_special_tokens=False)

    def require_tool_parser(self) -> None:
        """Raise `UnsupportedError` if the configuration does not say how the model writes calls of tools."""
        if self._generation.tool_parser is None:
            raise UnsupportedError(
                f"`tool_choice` auto, the default with `tools`, needs `tool_parser` in the configuration of model "
                f"`{self.name}`; or set it to required, none, or a function"
            )

    async def constraint(self, schema: Mapping[str, Any], what: str) -> Callable[[], Constraint]:
        """Makes a constraint for each answer that must match a schema. Raises the errors of `Grammars.constraint`."""
        text = self.require_text(f"{what} needs text")
        if self._grammars is None:
            self._grammars = Grammars(self.name, text, self._generation.stop_tokens)
        return await DaemonThreads("engine-grammar").run(self._grammars.constraint, schema, what)

    def _max_tokens(self, length: int, wanted: int | None) -> int:
        """The most tokens of an answer to a prompt of `length` tokens."""
        most = self._generation.max_tokens
        if wanted is not None and wanted > most:
            raise TooLargeError(f"max_tokens is {wanted}; model `{self.name}` gives at most {most} in an answer")
        if self._bound is None:
            return most if wanted is None else wanted
        room = self._bound - length + 1  # the last token of an answer is not computed
        if room < 1 or (wanted is not None and wanted > room):
            asked = "" if wanted is None else f", and max_tokens is {wanted}"
            raise InputError(
                f"the prompt has {length} tokens{asked}; model `{self.name}` takes sequences of at most {self._bound} "
                "tokens, the last token of an answer not counted; shorten the prompt, or ask for fewer tokens"
            )
        return min(most, room) if wanted is None else wanted

    def require_room(self, count: int) -> None:
        """Raise `Busy` if so many further sequences cannot run or wait now, `TooLargeError` if they never can."""
        most = self._generation.slots + self.config.queue_size
        if count > most:
            raise TooLargeError(
                f"the request asks for {count} answers, and at most {most} sequences of model `{self.name}` run and "
                "wait (`slots` and `queue_size`); divide the request"
            )
        if self._sequences.count + count > most:
            raise Busy(f"{self._sequences.count} sequences of model `{self.name}` run or wait; try again later")

    async def stream(
        self, prompt: Prompt, deadline: float | None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Piece, None]:
        """The next tokens, each as soon as it is computed. Raises `Refused`; `deadline` in seconds from now."""
        times = [time.perf_counter()]
        with generation_span(self.name, self.version, self.device, headers, len(prompt.tokens), times) as span:
            with refusing(self.name):
                if self._is_closed:
                    raise NotReadyError(f"model `{self.name}` was unloaded or loaded again; send the request again")
                self.require_room(1)
            async with contextlib.aclosing(self._measured(prompt, deadline, span)) as pieces:
                async for piece in pieces:
                    if piece.token is not None:
                        times.append(time.perf_counter())
                    yield piece

    async def _measured(self, prompt: Prompt, deadline: float | None, span: Any) -> AsyncGenerator[Piece, None]:
        """The pieces of an accepted sequence, whose outcome is counted and logged."""
        self._sequences.count += 1
        self._clock.begin(self.device)
        begin, end = time.perf_counter(), "ok"
        reading: list[Future[int | None]] = []
        try:
            async with contextlib.aclosing(self._pieces(prompt, deadline, reading)) as pieces:
                async for piece in pieces:
                    yield piece
            self._tally.answered += 1
        except EngineError as e:
            end = type(e).__name__
            refused = Refused(e)
            with in_span(span):
                refused.log(self.name)
            raise refused from e
        except Exception as e:
            end = type(e).__name__
            with in_span(span):
                raise unexpected(e, f"generating by model `{self.name}`") from e
        except BaseException:  # the client has disconnected, or the grace period is over
            end = Cancelled.__name__
            self._tally.end_early()
            raise
        finally:
            self._clock.end(self.device)
            when_done(reading[0] if reading else None, self._leave)
            self._series.measure(end, Times(arrived=begin, ended=time.perf_counter()))

    def _leave(self) -> None:
        """A sequence keeps its place until the scheduler has ended it, so that sequences do not accumulate if a device
        hangs.
        """
        self._sequences.count -= 1
        if self._is_retired and not self._sequences.count:
            self._close()

    async def _pieces(
        self, prompt: Prompt, deadline: float | None, reading: list[Future[int | None]]
    ) -> AsyncGenerator[Piece, None]:
        stream = self._submit(prompt)
        text = self.text.stream(prompt.stop) if self.text is not None and self.has_text else None
        tokens, is_first, count = iter(stream), True, 0
        until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        try:
            while True:
                self._sequences.begin_token()
                reading[:] = [self._readers.submit(next, tokens, None)]
                try:
                    async with asyncio.timeout_at(until):
                        token = await asyncio.wrap_future(reading[0])
                except TimeoutError as e:
                    raise DeadlineExceeded(
                        f"the deadline of the request to {self.name} passed after {len(stream.tokens)} tokens"
                    ) from e
                finally:
                    when_done(reading[0], self._sequences.end_token)
                if token is None:
                    break
                if is_first:
                    metrics.PROMPT_TOKENS.labels(self.name, self.version).inc(len(prompt.tokens))
                    metrics.PREFIX_TOKENS.labels(self.name, self.version).inc(stream.reused)
                    metrics.PREFIX_HITS.labels(self.name, self.version).inc(stream.reused > 0)
                    is_first = False
                metrics.TOKENS.labels(self.name, self.version).inc()
                log = stream.log_probabilities[count] if stream.log_probabilities else None
                count += 1
                yield Piece(token, "" if text is None or token in prompt.stop_tokens else text.add(token), log=log)
                if text is not None and text.is_stopped:
                    break
            rest = "" if text is None else text.end()
            is_stopped = stream.is_stopped if text is None else stream.is_stopped or text.is_stopped
            yield Piece(None, rest, "stop" if is_stopped else "length")
        finally:
            stream.cancel()

    def _submit(self, prompt: Prompt) -> Stream:
        return self._scheduler.submit(
            prompt.tokens,
            prompt.max_tokens,
            sampling=prompt.sampling,
            adapter=prompt.adapter,
            stop_tokens=prompt.stop_tokens,
            constraint=None if prompt.constraint is None else prompt.constraint(),
            log_probabilities=prompt.top,
        )

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """All tokens of an answer at once: `input_ids` [1, n] or [n] gives `tokens` [1, m]. Raises `Refused`."""
        with refusing(self.name):
            prompt = self.prompt_of(payload)
            deadline = seconds_left(headers, payload.parameters, self.config.timeout_ms)
        async with contextlib.aclosing(self.stream(prompt, deadline, headers)) as pieces:
            tokens = [piece.token async for piece in pieces if piece.token is not None]
        return self.response(payload, tokens)

    def prompt_of(self, payload: Any) -> Prompt:
        """The prompt of a request of the protocol, and its parameters. Raises `InputError`."""
        if not isinstance(payload, InferRequest):
            raise UnsupportedError("the server speaks version 2 of the protocol, the Open Inference Protocol: use /v2")
        if [tensor.name for tensor in payload.inputs] != [IDS] or payload.inputs[0].datatype != "INT64":
            raise InputError(f"model `{self.name}` generates tokens: expected one input, `{IDS}` of INT64")
        parameters = check_request(payload, set(payload.parameters or ()) - SEQUENCE)  # `prompt` checks the others
        for output in payload.request_outputs or ():
            if output.name != TOKENS:
                raise InputError(f"there is no output {output.name!r:.80}; the model's is {TOKENS}")
            if isinstance(output, RegionOutput):
                raise InputError(f"model `{self.name}` does not write its tokens to shared memory; take the answer's")
        ids = array_of(payload.inputs[0])
        if ids.ndim not in (1, 2) or (ids.ndim == 2 and len(ids) != 1) or not ids.size:
            raise InputError(f"input `{IDS}` has shape {list(ids.shape)}; expected [tokens] or [1, tokens]")
        return self.prompt(ids.reshape(-1).tolist(), {k: v for k, v in parameters.items() if k not in REQUEST})

    def response(self, payload: InferRequest, tokens: list[int]) -> InferResponse:
        """Tokens as a response with the output TOKENS, [1, tokens] of INT64."""
        value = np.array([tokens], np.int64)
        output = InferOutput(TOKENS, list(value.shape), "INT64", data=value)
        if payload.from_grpc:
            output.set_data_from_numpy(value, binary_data=True)
        return InferResponse(
            response_id=payload.id or uuid.uuid4().hex,
            model_name=self.name,
            model_version=self.version,
            infer_outputs=[output],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def retire(self, why: str) -> None:
        """The model was replaced or unloaded: the scheduler ends with the last sequence."""
        self._is_retired = True
        if not self._sequences.count:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        if self._chat is not None:
            self._chat.close()
        self._readers.submit(self._scheduler.close)
        self._readers.shutdown(wait=False)
