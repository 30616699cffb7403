"""`EncoderModel`: a model that turns texts into vectors, or pairs of texts into scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import Cancelled, EngineError, InputError, RepositoryError, ServingError
from engine.plugin_api import ExecutableNetwork
from engine_serve import metrics
from engine_serve.model_config import Encoder, ModelConfig
from engine_serve.model_text import ModelText
from engine_serve.refusals import Refused, unexpected
from engine_serve.request_queue import Times
from engine_serve.served_model import ServedModel
from engine_serve.tracing import request_span

Array = NDArray[Any]

_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_MAX_ROWS: Final = 32
_MAX_TOKENS: Final = 1 << 14
"""The most texts of an inference, and the most of their tokens with padding, which bounds the memory that it takes."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text or a pair, and for each of them 0, or 1 for the second text of the pair."""

    tokens: list[int]
    types: list[int]


class EncoderModel(ServedModel):
    """A network whose inputs are tokens, with a tokenizer and a pooling. It answers inferences, too.

    Raises `RepositoryError` if the network's inputs and outputs do not fit.
    """

    def __init__(
        self,
        name: str,
        version: int,
        network: ExecutableNetwork,
        config: ModelConfig,
        clock: metrics.DeviceClock,
        tally: metrics.Tally,
        most_answer_bytes: int,
        text: ModelText,
    ) -> None:
        assert config.encoder is not None
        super().__init__(name, version, network, config, clock, tally, most_answer_bytes)
        self.encoder, self._text = config.encoder, text
        text.tokenizer.no_padding()
        text.tokenizer.no_truncation()  # a text that is too long is refused, since its end may be what matters
        self._rows, self._length = _fixed(network)
        self._output = _output_of(network, self.encoder)

    @property
    def openai_names(self) -> tuple[str, ...]:
        """Its name."""
        return (self.name,)

    def sequence(self, given: str | Sequence[int], second: str | None = None) -> Encoded:
        """A text, a pair of texts, or tokens. Raises `InputError` for tokens that the tokenizer lacks, and for what is
        longer than the model takes.
        """
        if isinstance(given, str):
            self._text.require_unicode(given, second)
            encoded = self._text.tokenizer.encode(given, second)
            found = Encoded(list(encoded.ids), list(encoded.type_ids))
        else:
            wrong = [token for token in given if not 0 <= token < self._text.size]
            if wrong or not given:
                raise InputError(f"tokens are numbers from 0 to {self._text.size - 1}, one or more; got {wrong[:1]}")
            found = Encoded(list(given), [0] * len(given))
        most = min(each for each in (self.encoder.max_length, self._length, _MAX_TOKENS) if each is not None)
        if len(found.tokens) > most:
            raise InputError(f"a text has {len(found.tokens)} tokens; model `{self.name}` takes at most {most}")
        return found

    async def pooled(self, sequences: Sequence[Encoded], deadline: float | None, headers: Mapping[str, str]) -> Array:
        """The vector [size] or the score [1] of each sequence, in float32. Raises `Refused`."""
        times, end = Times(arrived=time.perf_counter()), "ok"
        self._clock.begin(self.device)
        try:
            with request_span(self.name, self.version, self.device, headers, times):
                found = await self._computed(sequences, deadline, times)
            self._tally.answered += 1
            return found
        except EngineError as e:
            end = type(e).__name__
            refused = Refused(e)
            refused.log(self.name)
            raise refused from e
        except Exception as e:
            end = type(e).__name__
            raise unexpected(e, f"an inference of model `{self.name}`") from e
        except BaseException:  # the client has disconnected, or the grace period is over
            end = Cancelled.__name__
            self._tally.end_early()
            raise
        finally:
            self._clock.end(self.device)
            times.ended = time.perf_counter()
            self._series.measure(end, times)

    async def _computed(self, sequences: Sequence[Encoded], deadline: float | None, times: Times) -> Array:
        """Computed in groups of similar lengths, so that little is computed for padding."""
        order = sorted(range(len(sequences)), key=lambda place: len(sequences[place].tokens))
        until = None if deadline is None else time.perf_counter() + deadline
        found: dict[int, Array] = {}
        groups = 0
        while order:
            rows = self._group([len(sequences[place].tokens) for place in order])
            group, order = order[:rows], order[rows:]
            inputs = self._tensors([sequences[place] for place in group])
            left = None if until is None else until - time.perf_counter()
            size = sum(value.nbytes for value in inputs.values())
            result = await self._queue.infer(inputs, left, Times() if groups else times, size)
            groups += 1
            states = np.asarray(result[self._output], np.float32)
            lengths = [len(sequences[place].tokens) for place in group]
            found |= zip(group, self._pool(states, lengths), strict=True)
        self._series.statistics.add_runs(groups - 1)
        return np.stack([found[place] for place in range(len(sequences))])

    def _group(self, lengths: Sequence[int]) -> int:
        """How many of these sequences, the shortest first, are computed together."""
        if self._rows is not None or "attention_mask" not in self._ports:
            return 1
        rows = 1
        while rows < min(_MAX_ROWS, len(lengths)) and (rows + 1) * (self._length or lengths[rows]) <= _MAX_TOKENS:
            rows += 1
        return rows

    @property
    def _ports(self) -> dict[str, Any]:
        return {port.name: port for port in self.network.inputs}

    def _tensors(self, sequences: Sequence[Encoded]) -> dict[str, Array]:
        """The inputs of an inference; shorter sequences are padded at their ends."""
        length = self._length or max(len(each.tokens) for each in sequences)
        shape = len(sequences), length
        ids, types, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, each in enumerate(sequences):
            ids[row, : len(each.tokens)], types[row, : len(each.types)] = each.tokens, each.types
            mask[row, : len(each.tokens)] = 1
        places = np.broadcast_to(np.arange(length), shape)
        values = dict(zip(_INPUTS, (ids, mask, types, places), strict=True))
        return {name: np.ascontiguousarray(values[name], port.element_type.numpy) for name, port in self._ports.items()}

    def _pool(self, states: Array, lengths: Sequence[int]) -> Array:
        """A vector or a score for each row of the states [rows, tokens, size], or of the scores [rows, 1]."""
        kind = self.encoder.pooling
        if kind == "score":
            if states.ndim != 2 or states.shape[1] != 1:
                raise InputError(f"output `{self._output}` has shape {list(states.shape)}; expected [texts, 1]")
            found = states
        else:
            pools: dict[str, Callable[[Array, int], Array]] = {
                "cls": lambda row, length: row[0],
                "last": lambda row, length: row[length - 1],
                "mean": lambda row, length: row[:length].mean(0),
            }
            found = np.stack([pools[kind](row, length) for row, length in zip(states, lengths, strict=True)])
        if not np.isfinite(found).all():
            raise ServingError(f"model `{self.name}` computed NaN or infinities for a text")
        if not self.encoder.normalize:
            return found
        if kind == "score":
            scores: Array = 1 / (1 + np.exp(-np.clip(found, -80, 80)))
            return scores
        norms: Array = np.linalg.norm(found, axis=1, keepdims=True)
        unit: Array = found / np.maximum(norms, np.finfo(np.float32).tiny)
        return unit


def _output_of(network: ExecutableNetwork, encoder: Encoder) -> str:
    """The name of the output that is pooled."""
    rank = 2 if encoder.pooling == "score" else 3
    fitting = [port.name for port in network.outputs if port.shape.rank.is_dynamic or len(port.shape) == rank]
    if encoder.output is not None:
        fitting = [name for name in fitting if name == encoder.output]
    if not fitting:
        known = ", ".join(f"`{port.name}` {port.shape}" for port in network.outputs)
        raise RepositoryError(
            f"pooling {encoder.pooling} needs an output of rank {rank}; the model has {known}; set `output` and "
            "`pooling` of [encoder]"
        )
    return fitting[0]


def _fixed(network: ExecutableNetwork) -> tuple[int | None, int | None]:
    """The numbers of rows and tokens of the inputs; None for any."""
    ports = {port.name: port for port in network.inputs}
    if "input_ids" not in ports or ports.keys() - set(_INPUTS):
        raise RepositoryError(
            f"the model has the inputs {', '.join(ports)}; with `encoder`, expected input_ids, and none but "
            f"{', '.join(_INPUTS)}"
        )
    shape = ports["input_ids"].shape
    if shape.rank.is_dynamic:
        return None, None
    rows, length = (each.get_length() if each.is_static else None for each in shape)
    if rows not in (None, 1) or (length is not None and "attention_mask" not in ports):
        raise RepositoryError(
            f"input `input_ids` has shape {shape}; expected any number of texts, or one, and without `attention_mask` "
            "any number of tokens"
        )
    return rows, length
